"""Verbs of the command line, one file for each that needs one."""

"""Verbs about what a study has left: trials, tables, models."""

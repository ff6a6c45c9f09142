"""Kept on disk: what is made of records once, as private as they are, whole or not there."""

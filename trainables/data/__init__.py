"""Data: which records there are, from which source, in which part."""

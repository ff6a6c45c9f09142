"""The data section of a spec: which records there are, and which of them are private."""

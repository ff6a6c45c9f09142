"""Selecting: the run that follows a search whose trials stay sealed."""

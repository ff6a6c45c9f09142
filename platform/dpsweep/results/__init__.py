"""Results: all that may be said of a study afterwards, and of which epsilon it covers."""

"""Results: all that may be said afterwards, and of which study."""

"""A whole study as frozen, checked data."""

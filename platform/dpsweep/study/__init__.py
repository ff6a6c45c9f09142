"""A study on disk, and the values that cross borders."""

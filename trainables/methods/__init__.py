"""One file or one folder a method, and what methods share."""

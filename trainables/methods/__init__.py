"""Methods: one file or one folder for each, and what they share."""

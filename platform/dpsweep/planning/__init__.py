"""What can be known before a record is opened."""

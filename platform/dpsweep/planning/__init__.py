"""Planning: all that can be known before a record is opened."""

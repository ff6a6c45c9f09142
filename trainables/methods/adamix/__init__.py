"""AdaMix: a linear head from private and a few public records."""

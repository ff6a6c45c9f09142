"""Which records there are."""

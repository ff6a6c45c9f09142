"""What may be said afterwards, and of what."""

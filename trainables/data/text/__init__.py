"""Text: records of one text or two, as the token ids that networks read."""

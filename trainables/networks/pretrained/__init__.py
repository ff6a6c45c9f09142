"""Networks and weights that others have made."""

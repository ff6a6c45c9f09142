"""A sweep under a simulated clock."""

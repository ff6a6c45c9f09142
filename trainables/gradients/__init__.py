"""Sums of clipped gradients of examples, and their noise."""

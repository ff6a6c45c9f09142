"""Least squares and second-order heads on frozen features, from noisy sums over all records."""

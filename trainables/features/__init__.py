"""Frozen features, computed once."""

"""Nodes of a cluster: what they run, what they lack, and what trials wait for there."""

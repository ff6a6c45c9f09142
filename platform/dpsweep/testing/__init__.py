"""Conformance suites for extensions; imported by tests only."""

"""Fakes and conformance suites for extensions; imported by tests only."""

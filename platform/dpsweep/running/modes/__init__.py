"""Modes: how a study runs under each accounting mode."""

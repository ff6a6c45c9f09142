"""Presets of published papers, one module for each."""

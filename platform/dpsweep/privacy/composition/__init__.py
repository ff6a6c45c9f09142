"""Composition: rules by which all trials of a study together stay within one epsilon."""

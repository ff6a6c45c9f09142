"""Declaring: which events a study says beforehand that it will cause, phase by phase."""

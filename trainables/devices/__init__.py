"""Devices: what a process takes of the memory there, and what it may take."""

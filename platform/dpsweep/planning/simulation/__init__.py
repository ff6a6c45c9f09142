"""Simulation: a sweep under a simulated clock, on made-up or tabulated curves."""

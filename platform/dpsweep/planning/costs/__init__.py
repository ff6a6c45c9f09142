"""Costs of a whole study, before it runs: its composition, its selection, its probes."""

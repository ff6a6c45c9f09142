"""Execution of one trial: charge, run, save, report."""

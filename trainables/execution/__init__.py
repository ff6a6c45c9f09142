"""One trial: charge, run, save, report."""

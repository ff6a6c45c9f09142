"""Auditing: canaries through a trial's own code, and what they prove against its claim."""

"""The search and scheduler sections of a spec: what is tried, how, and what is stopped early."""

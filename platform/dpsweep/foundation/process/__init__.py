"""The process that runs: its signals, its end, its imports, and what it replaces in libraries."""

"""Active learning on public records: which of them are worth a label."""

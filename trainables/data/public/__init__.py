"""Public records: rows of the training source, other files, pollution."""

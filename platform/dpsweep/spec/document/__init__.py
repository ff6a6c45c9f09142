"""A spec as a document: read with the line of each key, changed by `--set`, written."""

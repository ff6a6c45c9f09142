"""Pictures of a study: each a table and a chart of it."""

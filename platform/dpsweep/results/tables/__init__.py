"""Results as tables: rows of trials, data frames and files; many studies beside each other."""

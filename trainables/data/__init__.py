"""Records of a study: which there are, and where they come from."""

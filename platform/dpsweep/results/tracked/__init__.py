"""Results read from a tracking store, where nothing else of a study is at hand."""

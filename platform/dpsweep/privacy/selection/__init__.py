"""Selection of the best of a random number of trials: the accounting mode select."""

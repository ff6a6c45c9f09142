"""The parameters of a search space, and the hyperparameters that methods declare."""

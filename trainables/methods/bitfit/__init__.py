"""DP-BiTFiT: the biases and the classifier of a public network, trained privately."""

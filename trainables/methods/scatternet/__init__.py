"""DP-SGD on frozen features, and its counterpart without privacy."""

"""Sparse finetuning: a few parameters of a public network, trained privately."""

"""A finished trial: its model as a graph, its predictions, its pictures."""

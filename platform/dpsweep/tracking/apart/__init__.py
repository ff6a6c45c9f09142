"""A tracker apart: in a process of its own, so that the driver's trials do not wait for it."""

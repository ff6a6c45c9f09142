"""Rules for the gradients of examples by the parameters of a layer."""

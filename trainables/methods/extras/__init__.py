"""Extras of a training step: several views of an image, averaged weights."""

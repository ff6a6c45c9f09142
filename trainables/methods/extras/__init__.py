"""Extras of a training step: views, averages, corrected moments, a moving clip, bands of noise."""

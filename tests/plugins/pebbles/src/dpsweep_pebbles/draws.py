"""A sampler that draws from a bag: every configuration at random, with a seed of its own."""

from __future__ import annotations

import optuna


def build_draws(seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler ``pebble_draws``."""
    return optuna.samplers.RandomSampler(seed=seed + 1)

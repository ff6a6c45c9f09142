"""Optuna's samplers as they are used here."""

from __future__ import annotations

import warnings

import optuna

from dpsweep.foundation.errors import BadInputError
from dpsweep.search.long_tpe import LongTPE
from dpsweep.search.samplers import SAMPLERS


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of that name; ``grid`` needs none, since its points are enqueued.

    Raises:
        BadInputError: What an installed package adds under that name makes no sampler.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = SAMPLERS[name](seed)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise BadInputError(
            f"sampler {name!r} makes a {type(sampler).__name__}, not a sampler of Optuna's",
            fix="ask the authors of its package",
        )
    return sampler


def random_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return what draws every configuration from the space's own distributions."""
    return optuna.samplers.RandomSampler(seed=seed)


def tpe_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return the tree-structured Parzen estimator, one parameter at a time."""
    return LongTPE(seed)


def nsga2_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return the genetic algorithm for two objectives."""
    return optuna.samplers.NSGAIISampler(seed=seed)


def cmaes_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return CMA-ES; choices and conditional parameters are beyond it and are drawn at random."""
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def gp_sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Return the Gaussian process; conditional parameters are beyond it and drawn at random."""
    return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)

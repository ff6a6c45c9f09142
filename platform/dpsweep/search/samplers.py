"""Samplers by name: those of Optuna that dpsweep knows, and those of installed packages."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry
from dpsweep.spec.search.section import SAMPLER_GROUP

_OURS = "dpsweep.search.built_in"

#: Name -> ``build(seed) -> optuna.samplers.BaseSampler``. A new one is built for every trial, with
#: a seed of its own: all that it may know of the search stands in Optuna's study.
SAMPLERS = Registry(
    "sampler",
    {
        "cmaes": f"{_OURS}:cmaes_sampler",
        "gp": f"{_OURS}:gp_sampler",
        "grid": f"{_OURS}:random_sampler",  # never asked: the points of a grid are enqueued
        "nsga2": f"{_OURS}:nsga2_sampler",
        "random": f"{_OURS}:random_sampler",
        "tpe": f"{_OURS}:tpe_sampler",
    },
    group=SAMPLER_GROUP,
)

"""Effects of hyperparameters: which ones of a configuration decide nothing beside the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.methods.hyperparameters import ADAMS, QUANTILE

#: Hyperparameters that count only beside some words of another one.
_ONLY_BESIDE = {
    "noise.end_ratio": ("noise.shape", ("constant",), False),
    "noise.prefix_share": ("noise.prefix_factor", (1.0,), False),
    "clip.end_ratio": ("clip.shape", ("constant",), False),
    "clip.quantile": ("clip.rule", (QUANTILE,), True),
    "clip.quantile_rate": ("clip.rule", (QUANTILE,), True),
    "clip.count_noise": ("clip.rule", (QUANTILE,), True),
    "optim.momentum": ("optim.name", ("sgd",), True),
    "optim.beta1": ("optim.name", ADAMS, True),
    "optim.beta2": ("optim.name", ADAMS, True),
    "optim.floor": ("optim.name", ("adam_bc",), True),
    "augment.kinds": ("augment.multiplicity", (0,), False),
    "augment.padding": ("augment.multiplicity", (0,), False),
}


def without_effect(config: Mapping[str, Any], declared: Iterable[Hyperparameter]) -> dict[str, str]:
    """Return the hyperparameters of a configuration that decide nothing, each with the reason.

    Args:
        config: Names and values.
        declared: The hyperparameters of its method.

    >>> without_effect({"noise.shape": "constant", "noise.end_ratio": 0.5}, [])
    {'noise.end_ratio': 'noise.shape is constant'}
    """
    idle = {
        parameter.wins_over: f"{parameter.name} wins over it"
        for parameter in declared
        if parameter.wins_over in config and config.get(parameter.name) is not None
    }
    for name, (other, words, counts) in _ONLY_BESIDE.items():
        if name in config and other in config and (config[other] in words) is not counts:
            idle[name] = f"{other} is {config[other]}"
    return {name: idle[name] for name in config if name in idle}

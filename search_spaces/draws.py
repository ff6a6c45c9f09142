"""Draws of one parameter: suggested, at random, from a grid, or from its bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from dpsweep.spec.space.parameter import Parameter

if TYPE_CHECKING:
    import numpy as np
    import optuna


def suggest_value(parameter: Parameter, trial: optuna.trial.BaseTrial) -> Any:
    """Return a value of Optuna's choice."""
    if parameter.kind == "choice":
        return trial.suggest_categorical(parameter.key, parameter.choices)
    if parameter.is_whole:
        low, high = int(parameter.low), int(parameter.high)
        return trial.suggest_int(parameter.key, low, high, log=parameter.kind == "logint")
    is_log = parameter.kind == "loguniform"
    return trial.suggest_float(parameter.key, parameter.low, parameter.high, log=is_log)


def sample_value(parameter: Parameter, rng: np.random.Generator) -> Any:
    """Return a value at random, by the distribution of the range."""
    low, high = parameter.low, parameter.high
    if parameter.kind == "choice":
        return parameter.choices[int(rng.integers(len(parameter.choices)))]
    if parameter.kind == "int":
        return int(rng.integers(int(low), int(high), endpoint=True))
    if parameter.kind == "logint":
        # Half a unit on both sides, so that the two bounds get their full share.
        draw = math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5)))
        return int(min(max(round(draw), low), high))
    if parameter.kind == "loguniform":
        draw = math.exp(rng.uniform(math.log(low), math.log(high)))
        return float(min(max(draw, low), high))
    return float(rng.uniform(low, high))


def grid_values(parameter: Parameter) -> list[Any]:
    """Return the points a grid takes, ends included, without duplicates."""
    if not parameter.is_range:
        return list(parameter.choices)
    low, high, num = parameter.low, parameter.high, parameter.num or 1
    is_log = parameter.kind in ("loguniform", "logint")
    points = []
    for index in range(num):
        share = 0.5 if num == 1 else index / (num - 1)
        if share in (0, 1):
            points.append(high if share else low)
        else:
            points.append(low * (high / low) ** share if is_log else low + (high - low) * share)
    return list(dict.fromkeys(round(p) if parameter.is_whole else float(p) for p in points))


def bounds_of(parameter: Parameter) -> Parameter:
    """Return a range as the choice of its bounds."""
    if not parameter.is_range:
        return parameter
    kind = int if parameter.is_whole else float
    bounds = (kind(parameter.low), kind(parameter.high))
    return dataclasses.replace(parameter, kind="choice", choices=bounds, num=None)

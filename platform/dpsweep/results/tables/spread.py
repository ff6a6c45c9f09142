"""Spread of scores over repetitions and configurations, and the costs of a configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import scipy

from dpsweep.results.records import declared_by
from dpsweep.results.trial import TrialResult
from dpsweep.spec.space.hyperparameters import public_data

#: Columns of a report, each beside the score that it is of: ``median (test/accuracy)``.
SPREADS = ("min", "median", "max", "MAD")


def spread_of(values: Sequence[float], score: str) -> dict[str, float]:
    """Return the least, the median and the largest of values, and their median deviation.

    MAD is the median of the absolute deviations from the median (Tramer & Boneh 2021,
    https://arxiv.org/abs/2011.11660, table 3 and figure 8).

    >>> {name: round(value, 2) for name, value in spread_of([0.1, 0.5, 0.6, 0.9], "s").items()}
    {'min (s)': 0.1, 'median (s)': 0.55, 'max (s)': 0.9, 'MAD (s)': 0.2}

    Args:
        values: Scores of configurations, at least one.
        score: Their name.
    """
    median = statistics.median(values)
    deviation = statistics.median([abs(value - median) for value in values])
    figures = (min(values), median, max(values), deviation)
    return {f"{name} ({score})": value for name, value in zip(SPREADS, figures)}


def is_spread(name: str) -> bool:
    """Return whether a column of a report is one of these.

    >>> is_spread("MAD (test/accuracy)"), is_spread("test/accuracy")
    (True, False)
    """
    return name.split(" (")[0] in SPREADS and name.endswith(")")


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95% interval of a mean by Student's t; None for one value.

    >>> round(half_width([0.5, 0.6, 0.7]), 4)
    0.2484
    """
    if len(values) < 2:
        return None
    quantile = float(scipy.special.stdtrit(len(values) - 1, 0.975))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def costs_of(repetitions: Sequence[TrialResult]) -> dict[str, Any]:
    """Return mean seconds, largest peak memory in MiB, and the public data of one configuration.

    The first two are None where nothing tells them, see ``TrialResult``; the last one where the
    method's package is not installed here.
    """
    seconds = [trial.seconds for trial in repetitions if trial.seconds is not None]
    memory = [trial.memory_mb for trial in repetitions if trial.memory_mb is not None]
    config = repetitions[0].config
    declared = declared_by(config["method"])
    return {
        "seconds": statistics.fmean(seconds) if seconds else None,
        "memory MiB": max(memory) if memory else None,
        "public data": None if declared is None else public_data(declared, config),
    }

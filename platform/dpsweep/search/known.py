"""Trials that Optuna is not asked for: those of the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dpsweep.search.optuna_file import EPSILON

Outcome = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True)
class KnownTrial:
    """A trial that Optuna once suggested, as the journal says.

    Attributes:
        config: Its configuration, the method included.
        outcome: How it has ended; None: it has not.
        values: Its objectives, or None without a score.
        scores: Step -> reported score.
        reason: Why it was never run (empty: it was).
        epsilon: Of everything charged to it; None: it was charged nothing, or has none.
    """

    config: Mapping[str, Any]
    outcome: Outcome | None
    values: Sequence[float] | None = None
    scores: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""
    epsilon: float | None = None


def objective_values(
    objectives: Sequence[str], *, epsilon: float, value: float | None
) -> list[float] | None:
    """Return the objectives of a trial in their order, or None if it lacks one."""
    figures = {EPSILON: epsilon}
    values = [figures.get(name, value) for name in objectives]
    scores = [value for value in values if value is not None]
    return scores if len(scores) == len(values) else None

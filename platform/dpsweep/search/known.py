"""Trials that Optuna is not asked for: those of the journal, and points that the spec gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dpsweep.search.optuna_file import EPSILON
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec

Outcome = Literal["finished", "pruned", "failed"]


def first_points(spec: SweepSpec, space: SearchSpace) -> list[dict[str, Any]]:
    """Return what is evaluated before the sampler is asked; for a grid that is all of it.

    A grid has each of its points once: those that ``points_to_evaluate`` names come first.
    """
    wanted = [dict(point) for point in spec.search.points_to_evaluate]
    if spec.search.sampler != "grid":
        return wanted

    def rank(point: Mapping[str, Any]) -> int:
        for place, names in enumerate(wanted):
            if all(point.get(name) == value for name, value in names.items()):
                return place
        return len(wanted)

    return sorted(space.grid(), key=rank)


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

"""Configurations that the spec gives: they are evaluated before Optuna is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec


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

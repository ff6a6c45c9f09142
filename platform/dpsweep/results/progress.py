"""Progress of a study: how many trials it may have in all."""

from __future__ import annotations

from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec


def most_trials(spec: SweepSpec) -> int:
    """Return how many trials a study has at most: runs of a start, spares and final runs too."""
    if spec.final_trial is not None:
        return spec.final_trial + 1
    others = spec.num_starts + (spec.search.on is not None)
    if spec.episodes is None and spec.search.sampler != "grid":
        return others + spec.search.num_trials
    in_grid = len(SearchSpace.from_spec(spec.space).grid())
    if spec.episodes is not None:
        return in_grid
    return others + min(in_grid, spec.search.num_trials)

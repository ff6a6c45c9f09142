"""Progress of a study: how many trials it may have in all."""

from __future__ import annotations

from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec


def most_trials(spec: SweepSpec) -> int:
    """Return how many trials a study has at most: runs of a start, spares and a final run too."""
    if spec.final_trial is not None:
        return spec.final_trial + 1
    if spec.episodes is None and spec.search.sampler != "grid":
        return spec.num_starts + spec.search.num_trials
    in_grid = len(SearchSpace.from_spec(spec.space).grid())
    if spec.episodes is not None:
        return in_grid
    return spec.num_starts + min(in_grid, spec.search.num_trials)

"""The reference of a regret: the best fixed value at an epsilon, as if it had been known."""

from __future__ import annotations

from dpsweep.foundation import validate
from dpsweep.planning.preflight import preflight
from dpsweep.planning.strategies.base import searched_range, study
from dpsweep.spec.study import SweepSpec


def oracle(
    base: SweepSpec,
    *,
    epsilon: float,
    points: int,
    seeds: int,
    bounds: tuple[float, float] | None = None,
) -> tuple[SweepSpec, ...]:
    """Return studies that run every point of a grid over the base's range, one study a seed.

    Guarantees:
        None: each trial is ``epsilon``-DP alone, and the search among them is unaccounted.

    Args:
        base: As for ``Strategy.spec``.
        epsilon: Of each trial, bounded by privacy loss distributions.
        points: Of the grid, evenly spaced in the logarithm, bounds included; at least 2.
        seeds: Number of studies, at least 1; their seeds count up from the base's.
        bounds: Of the grid; None: those of the range, which is wider than an oracle needs.
    Raises:
        BadInputError: As for ``searched_range``.
        SpecError: The base has something that a grid does not go with.
    """
    epsilon = validate.positive("epsilon", epsilon)
    points = validate.whole("points", points, low=2)
    seeds = validate.whole("seeds", seeds, low=1)
    searched = searched_range(base)
    low, high = bounds or (searched.low, searched.high)
    domain = {searched.kind: [low, high], "num": points}
    privacy = {"accounting": "unaccounted", "accountant": "pld", "trial_epsilon": epsilon}
    search = {"sampler": "grid", "num_trials": points}
    spec = study(base, "oracle", privacy=privacy, search=search, domain=domain)
    preflight(spec)
    return tuple(
        spec.model_copy(update={"name": f"{spec.name[:55]}-{seed}", "seed": base.seed + seed})
        for seed in range(seeds)
    )

"""A sample of a space, every configuration planned: what a summary is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.preflight import NUM_SAMPLED, Preflight
from dpsweep.study.trial import TrialTask

MAX_GRID_PLANNED = 1000


@dataclass(frozen=True)
class Sample:
    """Planned configurations of a space.

    Attributes:
        tasks: Those that have a plan.
        num_drawn: All of them.
        reasons: Message of each refusal, with its count.
        is_exact: True for a whole grid.
    """

    tasks: list[TrialTask]
    num_drawn: int
    reasons: Mapping[str, int]
    is_exact: bool


def draw_sample(checked: Preflight, num_samples: int = 2 * NUM_SAMPLED) -> Sample:
    """Plan configurations drawn from the space at random; of a grid all of them, up to a limit.

    Of probes it is every point, and last the final run.

    Raises:
        SpecError: Probes, or a final run after them, cannot be had.
    """
    if checked.spec.final_trial is not None:
        tasks = Probing(checked).tasks
        return Sample(tasks, len(tasks), {}, is_exact=True)
    is_exact = False
    points: Iterable[Mapping[str, Any]] = checked.draw(num_samples)
    if checked.spec.search.sampler == "grid":
        grid = checked.space.grid()
        is_exact = len(grid) <= MAX_GRID_PLANNED
        rng = np.random.default_rng(checked.spec.seed)
        order = np.sort(rng.permutation(len(grid))[:MAX_GRID_PLANNED])
        points = (grid[index] for index in order)
    tried = list(checked.try_points(points))
    tasks = [task for task in tried if isinstance(task, TrialTask)]
    reasons = Counter(error.message for error in tried if isinstance(error, BadInputError))
    return Sample(tasks, len(tried), reasons, is_exact)

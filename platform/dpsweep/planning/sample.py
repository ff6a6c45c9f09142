"""A sample of a space, every configuration planned: what a summary is made from."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.preflight import NUM_SAMPLED, Preflight
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.method import first_training_run

MAX_GRID_PLANNED = 1000
#: Configurations of a sample whose final run is planned, too: each takes a calibration.
_MAX_FINAL_RUNS = 6


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


@dataclass(frozen=True)
class FinalFigures:
    """The run after a search on a part of the records, by some configurations of a sample.

    Attributes:
        searched: Declared private records that the search reads.
        records: Declared private records that the final run reads, and nothing before it.
        epsilon: What it may cost.
        accountant: Accountant of that.
        steps: Smallest and largest number of steps.
        expected_batch: Smallest and largest one.
        noise_multiplier: Smallest and largest one of a first step.
        factors: Learning rate that is carried over -> smallest and largest number that it is
            multiplied by (``CarriesOver``); others stay as they are.
    """

    searched: int
    records: int
    epsilon: float
    accountant: str
    steps: tuple[int, int]
    expected_batch: tuple[float, float]
    noise_multiplier: tuple[float, float]
    factors: Mapping[str, tuple[float, float]]


def final_figures(checked: Preflight, tasks: Sequence[TrialTask]) -> FinalFigures | None:
    """Return the final run that some of these trials would have; None where there is none.

    Guarantees:
        They are spread over the sample; others may have other figures.
    """
    if checked.rest is None:
        return None
    finals: list[TrialTask] = []
    factors: dict[str, list[float]] = {}
    for task in tasks[:: max(1, len(tasks) // _MAX_FINAL_RUNS)]:
        with contextlib.suppress(BadInputError):  # the search would refuse it
            finals.append(checked.final_of(task.trial, task))
            for name, factor in _factors(task.hparams, finals[-1].hparams).items():
                factors.setdefault(name, []).append(factor)
    if not finals:
        return None
    records = checked.rest.info.num_private
    first = [(len(final.plan), first_training_run(final.plan).event) for final in finals]
    steps = [count for count, _ in first]
    batches = [event.expected_share() * records for _, event in first]
    noises = [getattr(event, "noise_multiplier") for _, event in first]  # noqa: B009
    return FinalFigures(
        checked.info.num_private,
        records,
        checked.rest.budget.target_epsilon,
        checked.spec.privacy.accountant,
        (min(steps), max(steps)),
        (min(batches), max(batches)),
        (min(noises), max(noises)),
        {name: (min(values), max(values)) for name, values in factors.items()},
    )


def _factors(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return by what a final run multiplies the learning rates of its trial."""
    changed = {k: v for k, v in before.items() if isinstance(v, float) and v and after[k] != v}
    return {k: after[k] / v for k, v in changed.items() if k.startswith("optim.") and after[k]}


def expected_trials(checked: Preflight, sample: Sample) -> int:
    """Return how many trials will run; under ``select`` their expected number, rounded up.

    Points of a grid without a plan are none, where all of it was planned: not of a search on public
    records, whose plans are others.
    """
    spec = checked.spec
    if spec.privacy.mode.is_sealed:
        return math.ceil(spec.privacy.selection.mean)
    is_probing, is_public = spec.final_trial is not None, spec.privacy.mode.is_public_search
    if is_probing or is_public or not sample.is_exact:
        return checked.num_trials
    return min(checked.num_trials, len(sample.tasks))


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

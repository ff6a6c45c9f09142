"""The largest trial epsilon whose whole study fits into one epsilon, for each way of accounting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.planning.preflight import Preflight, preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import gaussian_noise, largest_within
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.composition.declared import declared_classes, declared_epsilon
from dpsweep.privacy.events import Plan
from dpsweep.privacy.selection.bounds import bound_of
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialTask

#: The epsilon of a whole study whose trials are all like one task.
StudyCost = Callable[[Preflight, TrialTask], float]


def largest_trial_epsilon(spec: SweepSpec, cost: StudyCost) -> float:
    """Return the largest trial epsilon, to four digits, whose study was seen to fit its cap.

    One configuration stands for all: strategies search what no plan depends on.

    Args:
        spec: With the epsilon of everything as ``trial_epsilon``.
        cost: What a study of such trials costs.
    Raises:
        BadInputError: None was found to fit.
        SpecError: The spec is refused by ``preflight``.
    """
    checked = preflight(spec)
    cap = spec.privacy.trial_epsilon
    values = next(iter(checked.draw(1)))

    def study_epsilon(trial_epsilon: float) -> float:
        try:
            return cost(checked, _planned(checked, trial_epsilon, values))
        except InfeasibleBudgetError:
            return math.inf

    task = checked.admit(0, values)  # with the reason, where there is no plan even for all of it
    whole = cost(checked, task)
    fits = largest_within(study_epsilon, cap, known=(cap, whole)) if whole < math.inf else None
    if fits is None:
        raise BadInputError(
            f"no trial epsilon was found at which all trials cost at most epsilon={cap:g} together",
            because=f"of {cap:g} each they cost {shown_epsilon(whole)}, and smaller ones admit no "
            "plan or cost as much",
            fix="larger data.validation.noise_std if scores are noisy, or a larger epsilon",
        )
    return fits


def quiet_enough(spec: SweepSpec, base: SweepSpec, epsilon: float, *, scores: int) -> SweepSpec:
    """Return the base with so much noise on its scores that all of a study's fit into epsilon.

    Scores read other records than training does, so what counts is the larger of both costs. Under
    a Renyi filter both are held at one order, which is to suit the training: so scores may cost
    half of epsilon. A ``noise_std`` that is enough stays.

    Args:
        spec: The study, for the declared number of validation records.
        base: What it is made of.
        epsilon: Of everything.
        scores: Number of noisy scores of the whole study.
    """
    noise_std = base.data.validation.noise_std
    if noise_std is None:
        return base
    half = PrivacyBudget(target_epsilon=epsilon / 2, delta=base.privacy.delta)
    counts = preflight(spec).info.num_validation
    least = math.ceil(1e5 * gaussian_noise(half, steps=scores, accountant="rdp") / counts) / 1e5
    if noise_std >= least:
        return base
    validation = base.data.validation.model_copy(update={"noise_std": least})
    data = base.data.model_copy(update={"validation": validation})
    return base.model_copy(update={"data": data})


def filtered(num_trials: int) -> StudyCost:
    """Return the cost of so many whole trials under a Renyi filter whose order suits them."""
    return lambda checked, task: _renyi(checked, [(task.full_plan, num_trials)])


def declared(num_trials: int) -> StudyCost:
    """Return the cost of so many whole trials whose events are declared."""
    return lambda checked, task: declared_epsilon(
        declared_classes([[(task.full_plan, num_trials)]]), checked.spec.privacy.delta
    )


def selected(checked: Preflight, task: TrialTask) -> float:
    """Return the cost of the best of a random number of trials."""
    privacy = checked.spec.privacy
    selection = Selection(privacy.selection.mean, privacy.selection.shape)
    bound = bound_of([task.full_plan], privacy.accountant)
    return bound.selected(selection, delta=privacy.delta)


def halved(shares: Sequence[float], runs: Sequence[int]) -> StudyCost:
    """Return the cost of trials that are halved, under a Renyi filter whose order suits them.

    Args:
        shares: Where the rungs are, as shares of a trial's steps.
        runs: Trials that run to the first rung, from each rung to the next, and to the end.
    """

    def cost(checked: Preflight, task: TrialTask) -> float:
        ends = [0, *_positions(task, shares), len(task.plan)]
        pieces = [
            (task.plan.slice(start, stop), number)
            for (start, stop), number in zip(pairwise(ends), runs, strict=True)
        ]
        return _renyi(checked, [*pieces, (checked.admission.score, sum(runs))])

    return cost


def rungs_at(spec: SweepSpec, trial_epsilon: float, shares: Sequence[float]) -> list[float]:
    """Return the epsilons of a trial after these shares of its steps.

    Epsilon grows fast in the first steps and slowly in the last, so a share of the one is far from
    the same share of the other.

    Raises:
        BadInputError: A trial has so few steps that rungs fall on one, or on its end.
    """
    checked = preflight(spec)
    task = _planned(checked, trial_epsilon, next(iter(checked.draw(1))))
    clock = EpsilonClock(task.plan, delta=spec.privacy.delta, accountant=spec.privacy.accountant)
    positions = _positions(task, shares)
    if any(before >= after for before, after in pairwise([*positions, len(task.plan)])):
        raise BadInputError(
            f"a trial has {len(task.plan)} steps, too few for {len(shares)} rungs between them",
            fix="more train.epochs, or a smaller batch.expected",
        )
    # Rounded down, so that the step itself reaches its rung.
    return [_five_digits_down(clock.epsilon_after(position)) for position in positions]


def _positions(task: TrialTask, shares: Sequence[float]) -> list[int]:
    return [max(1, round(share * len(task.plan))) for share in shares]


def _five_digits_down(value: float) -> float:
    """Return a positive number cut to five significant digits.

    >>> _five_digits_down(0.1234567)
    0.12345
    """
    scale = 10.0 ** (4 - math.floor(math.log10(value)))
    return math.floor(value * scale) / scale


def _planned(checked: Preflight, trial_epsilon: float, values: Mapping[str, Any]) -> TrialTask:
    """Return the task of a configuration at another trial epsilon than the spec's.

    Raises:
        InfeasibleBudgetError: It has no plan.
    """
    budget = dataclasses.replace(checked.budget, target_epsilon=trial_epsilon)
    return dataclasses.replace(checked, budget=budget).admit(0, values)


def _renyi(checked: Preflight, plans: Sequence[tuple[Plan, int]]) -> float:
    """Return the epsilon of plans, each run so many times."""
    runs = (
        dataclasses.replace(run, count=run.count * copies)
        for plan, copies in plans
        for run in plan.runs
    )
    return epsilon_of(Plan(tuple(runs)), delta=checked.spec.privacy.delta, accountant="rdp")

"""Barrier of a search: what is declared on both sides of it, and what its winner keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.planning.declaring.phases import classes_of, only_task, phases_of
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.calibration.largest import largest_within
from dpsweep.privacy.composition.declared import (
    DeclaredClass,
    declared_classes,
    declared_epsilon,
    event_words,
)

_CLOSE = 0.995  # share of the study's epsilon that is used, and nothing better is looked for


@dataclass(frozen=True)
class BarrierFigures:
    """What trials wait for at the end of their noisy prefix, and what that costs.

    Attributes:
        classes: Each declared class in words, in the order of the phases.
        keep: How many trials are promoted.
        steps: Steps up to the barrier.
        num_steps: Steps of a promoted trial.
        epsilon: Of one trial that runs to its end alone, by pld: what the search leaves of the
            study's.
        trial_epsilon_that_fits: Largest ``privacy.trial_epsilon``, to four digits, at which all
            trials that are wanted were seen to fit; None where the spec's is nearly that.
    """

    classes: tuple[str, ...]
    keep: int
    steps: int
    num_steps: int
    epsilon: float
    trial_epsilon_that_fits: float | None


def barrier_figures(checked: Preflight, classes: Sequence[DeclaredClass]) -> BarrierFigures:
    """Return the figures of a study whose trials wait at a barrier, given what it declares."""
    task, delta = only_task(checked), checked.spec.privacy.delta
    words = [
        f"{c.count} times {event_words(c.event)} on the {c.part} records"
        + (", in both phases" if c.phase is None else "")
        for c in classes
    ]
    return BarrierFigures(
        tuple(words),
        checked.spec.scheduler.keep,
        task.barrier,
        len(task.plan),
        declared_epsilon(declared_classes([[(task.full_plan, 1)]]), delta),
        fitting_trial_epsilon(checked),
    )


def fitting_trial_epsilon(checked: Preflight) -> float | None:
    """Return the largest trial epsilon, to four digits, at which all trials wanted were seen to
    fit; None where the spec's is nearly that.
    """
    privacy, task = checked.spec.privacy, only_task(checked)
    cap = privacy.study_epsilon
    assert cap is not None

    def price(trial_epsilon: float) -> float:
        budget = replace(checked.budget, target_epsilon=trial_epsilon)
        values = {"method": task.method, **task.hparams}
        try:
            planned = replace(checked, budget=budget).admit(task.trial, values)
        except InfeasibleBudgetError:
            return math.nan
        phases = phases_of(checked, planned)
        return declared_epsilon(classes_of(phases, phases.wanted), privacy.delta)

    epsilon = price(privacy.trial_epsilon)
    if _CLOSE * cap <= epsilon <= cap:
        return None
    return largest_within(
        price, cap, known=(privacy.trial_epsilon, epsilon), most=cap, close=1 - _CLOSE
    )

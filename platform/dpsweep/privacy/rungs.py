"""Where a trial reaches the rungs of a scheduler: positions of its plan, known before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.plan import TRAINING

RungUnit = Literal["epsilon", "share"]


def rung_epsilons(rungs: Sequence[float], unit: RungUnit, clock: EpsilonClock) -> tuple[float, ...]:
    """Return a trial's rungs as amounts of epsilon.

    Args:
        rungs: As the spec has them, ascending.
        unit: ``epsilon``: they are amounts; ``share``: they are shares of what the whole plan of
            the trial costs, so that trials with different targets meet half-way at their own half.
        clock: Of the whole plan as it was admitted, with what the trial inherits.
    """
    if unit == "epsilon":
        return tuple(rungs)
    whole = clock.epsilon_after(len(clock.plan))
    return tuple(share * whole for share in rungs)


def rung_positions(clock: EpsilonClock, rungs: Sequence[float]) -> list[int]:
    """Return the position at which each rung is reached, at least 1.

    A rung that the plan ends before is left out, and so are all larger ones.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> clock = EpsilonClock(Plan((EventRun(PoissonGaussian(1.0, 0.01), 1000),)), delta=1e-5)
    >>> rung_positions(clock, [0.1, 1.0, 2.0, 9.0])
    [1, 5, 882]

    Args:
        clock: Of what is still to run; position 0 is where it begins.
        rungs: Amounts of epsilon, ascending.
    """
    positions = []
    for rung in rungs:
        after = clock.position_at(rung)
        if clock.epsilon_after(after) < rung:
            break
        # Charges that a crash lost may have reached it already: the next model stands for it.
        positions.append(max(after, 1))
    return positions


def first_step(plan: Plan) -> int:
    """Return the position after the first training step.

    Releases of statistics before the training make no model. A plan without a phase of training
    begins with its first event.
    """
    before = 0
    for run in plan.runs:
        if run.phase in TRAINING:
            return before + 1
        before += run.count
    return 1


def num_skipped(plan: Plan, positions: Sequence[int]) -> int:
    """Return how many rungs the first training step of a plan passes.

    A model of one step says nothing of its configuration, so no trial is judged there.

    Args:
        plan: Of the whole trial.
        positions: Its rungs, from ``rung_positions``.
    """
    return sum(position <= first_step(plan) for position in positions)

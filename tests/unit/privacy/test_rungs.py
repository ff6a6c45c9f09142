"""Where a trial reaches the rungs of a scheduler."""

from __future__ import annotations

import pytest

from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import EventRun, Gaussian, NonPrivate, Plan, PoissonGaussian
from dpsweep.privacy.rungs import first_step, num_skipped, rung_epsilons, rung_positions

TRAIN = EventRun(PoissonGaussian(1.0, 0.01), 1000)
CLOCK = EpsilonClock(Plan((TRAIN,)), delta=1e-5)


def test_a_rung_is_an_amount_or_a_share_of_the_whole_plan() -> None:
    whole = CLOCK.epsilon_after(1000)
    assert rung_epsilons([0.1, 0.5], "epsilon", CLOCK) == (0.1, 0.5)
    assert rung_epsilons([0.1, 0.5], "share", CLOCK) == (0.1 * whole, 0.5 * whole)


def test_a_rung_is_reached_at_the_first_position_of_its_epsilon() -> None:
    positions = rung_positions(CLOCK, [1.0, 1.5, 2.0])
    for position, rung in zip(positions, (1.0, 1.5, 2.0)):
        assert CLOCK.epsilon_after(position - 1) < rung <= CLOCK.epsilon_after(position)
    # The plan ends before the third, so no later one counts either.
    assert rung_positions(CLOCK, [1.0, 1.5, 9.0, 10.0]) == positions[:2]


def test_what_a_crash_has_charged_already_waits_for_a_model() -> None:
    spent = Plan((TRAIN,))
    clock = EpsilonClock(Plan((EventRun(TRAIN.event, 10),)), delta=1e-5, spent=spent)
    assert rung_positions(clock, [0.5, 1.0]) == [1, 1]


@pytest.mark.parametrize(
    ("runs", "first"),
    [
        ((TRAIN,), 1),
        ((EventRun(Gaussian(9.0), 3, "normalize"), TRAIN), 4),
        ((EventRun(Gaussian(9.0), 3, "normalize"), EventRun(NonPrivate(), 2, "other")), 1),
        ((), 1),
    ],
)
def test_the_first_step_is_the_first_of_training(runs: tuple, first: int) -> None:
    plan = Plan(runs)
    assert first_step(plan) == first
    assert num_skipped(plan, [1, first, first + 1, 100]) == 2 if first > 1 else 1

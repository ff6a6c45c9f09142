"""The epsilon clock equals the accountant at every position, and is fast."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import calibrate_noise_schedule
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import (
    EventRun,
    Gaussian,
    Laplace,
    NonPrivate,
    Part,
    Plan,
    PoissonGaussian,
    PoissonSubset,
    RepeatAndSelect,
)
from dpsweep.privacy.schedules import NoiseSchedule

DELTA = 1e-5
events = st.one_of(
    st.builds(
        PoissonGaussian, st.sampled_from([0.4, 0.9, 2.0, 300.0]), st.sampled_from([0.0, 0.01, 1])
    ),
    st.builds(Gaussian, st.sampled_from([3.0, 40.0, 5000.0])),
    st.builds(Laplace, st.sampled_from([1.0, 30.0])),
    st.just(RepeatAndSelect(3, 1.0, Plan((EventRun(Gaussian(5.0)),)))),
    st.just(PoissonSubset(0.1, Plan((EventRun(Gaussian(5.0)),)))),
)
runs = st.builds(
    EventRun, events, st.integers(1, 4), st.just("train"), st.sampled_from(["private", "public"])
)
plans = st.lists(runs, max_size=5).map(lambda found: Plan(tuple(found)))


@settings(deadline=None)
@given(plans, plans)
def test_the_table_is_the_accountant_at_every_position(plan: Plan, spent: Plan) -> None:
    clock = EpsilonClock(plan, delta=DELTA, spent=spent)
    expected = [
        epsilon_of(spent + plan.slice(0, position), delta=DELTA)
        for position in range(len(plan) + 1)
    ]
    np.testing.assert_allclose(clock.table(), expected, rtol=1e-12)
    assert [clock.epsilon_after(t) for t in range(len(plan) + 1)] == clock.table().tolist()
    assert np.all(np.diff(clock.table()) >= 0)


def test_last_allowed_of_a_long_run() -> None:
    clock = EpsilonClock(Plan((EventRun(PoissonGaussian(1.0, 0.01), 5000),)), delta=DELTA)
    assert clock.last_allowed(2.0) == 881
    assert clock.epsilon_after(881) <= 2.0 < clock.epsilon_after(882)
    assert clock.position_at(2.0) == 882
    assert clock.position_at(clock.epsilon_after(881)) == 881
    assert clock.last_allowed(1e9) == 5000
    assert clock.position_at(1e9) == 5000
    assert clock.last_allowed(1e-6) == 0


def test_crashed_segments_move_the_stop() -> None:
    run = EventRun(PoissonGaussian(1.0, 0.01), 900)
    spent = Plan((EventRun(PoissonGaussian(1.0, 0.01), 100),))
    assert EpsilonClock(Plan((run,)), delta=DELTA, spent=spent).last_allowed(2.0) == 781
    over = Plan((EventRun(Gaussian(0.5)),))
    assert EpsilonClock(Plan((run,)), delta=DELTA, spent=over).last_allowed(2.0) == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_calibrated_plan_is_allowed_to_its_end(accountant: str) -> None:
    schedule = NoiseSchedule("cosine", 0.5)
    budget = PrivacyBudget(target_epsilon=2.0, delta=DELTA)
    steps = 400 if accountant == "rdp" else 10
    start = calibrate_noise_schedule(
        budget, schedule=schedule, sample_rate=0.02, steps=steps, accountant=accountant
    )
    plan = schedule.plan(start, 0.02, steps)
    clock = EpsilonClock(plan, delta=DELTA, accountant=accountant)
    assert clock.last_allowed(2.0) == steps
    assert 0.97 * 2.0 < clock.epsilon_after(steps) <= 2.0


def test_pld_is_lazy_and_has_no_table() -> None:
    plan = Plan((EventRun(PoissonGaussian(1.5, 0.02), 400),))
    clock = EpsilonClock(plan, delta=DELTA, accountant="pld")
    assert clock.last_allowed(1.0) == pytest.approx(268, abs=1)
    assert clock.epsilon_after(0) == 0.0
    assert clock.epsilon_after(268) == epsilon_of(plan.slice(0, 268), delta=DELTA, accountant="pld")
    assert clock.position_at(1.0) == clock.last_allowed(1.0) + 1
    with pytest.raises(BadInputError, match="no table"):
        clock.table()


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_plan_that_is_not_private_is_infinite_from_its_first_event(accountant: str) -> None:
    plan = Plan((EventRun(Gaussian(10.0), 2), EventRun(NonPrivate(), 3)))
    clock = EpsilonClock(plan, delta=DELTA, accountant=accountant)
    assert clock.epsilon_after(2) < 2
    assert clock.epsilon_after(3) == clock.epsilon_after(5) == math.inf
    assert clock.last_allowed(2.0) == 2


def test_an_empty_plan_and_positions_outside() -> None:
    clock = EpsilonClock(Plan(), delta=DELTA)
    assert clock.table().tolist() == [0.0]
    assert clock.last_allowed(1.0) == 0
    for position in (-1, 1):
        with pytest.raises(IndexError):
            clock.epsilon_after(position)


def test_a_table_cannot_be_changed() -> None:
    clock = EpsilonClock(Plan((EventRun(Gaussian(10.0)),)), delta=DELTA)
    with pytest.raises(ValueError, match="read-only"):
        clock.table()[1] = 0.0


def test_a_known_plan_is_set_up_in_a_fifth_of_a_second_and_looked_up_in_microseconds() -> None:
    plan = NoiseSchedule("cosine", 0.4).plan(2.5, 0.01, 1000)
    EpsilonClock(plan, delta=DELTA).epsilon_after(1)
    start = time.process_time()
    clock = EpsilonClock(plan, delta=DELTA)
    clock.epsilon_after(1)
    assert time.process_time() - start < 0.2
    start = time.process_time()
    for position in range(1000):
        clock.epsilon_after(position)
    assert (time.process_time() - start) / 1000 < 15e-6


def test_a_clock_is_about_private_records() -> None:
    names: tuple[Part, ...] = ("private", "validation")
    private, other = (
        Plan((EventRun(PoissonGaussian(1.0, 0.01), 100, part=name),)) for name in names
    )
    for plan, spent in ((private + other, Plan()), (private, other)):
        with pytest.raises(BadInputError, match="about private records, not about validation"):
            EpsilonClock(plan, delta=DELTA, spent=spent)
    mixed = EpsilonClock(private, delta=DELTA, spent=(private + other).part("private"))
    assert mixed.epsilon_after(100) == pytest.approx(epsilon_of(private + private, delta=DELTA))


def test_positions_on_public_records_are_free_whatever_they_do() -> None:
    steps = Plan((EventRun(PoissonGaussian(1.0, 0.01), 100),))
    public = Plan((EventRun(NonPrivate(), 7, "finetune", "public"),))
    clock = EpsilonClock(steps + public + steps, delta=DELTA)
    alone = EpsilonClock(steps + steps, delta=DELTA)
    assert (
        clock.table().tolist()[:108]
        == alone.table().tolist()[:100] + [alone.epsilon_after(100)] * 8
    )
    assert clock.epsilon_after(207) == alone.epsilon_after(200)
    assert clock.last_allowed(alone.epsilon_after(100)) == 107


def test_the_last_allowed_position_is_what_the_accountant_accepts() -> None:
    clock = EpsilonClock(Plan((EventRun(PoissonGaussian(1.0, 0.01), 300),)), delta=1e-5)
    right = clock.last_allowed(1.0)
    assert clock.epsilon_after(right) <= 1.0 < clock.epsilon_after(right + 1)
    # As if the table had been a little too low: the accountant that will refuse decides.
    low = EpsilonClock(clock.plan, delta=1e-5)
    low.__dict__["_table"] = clock.table() * 0.99
    assert low.last_allowed(1.0) == right


@pytest.mark.parametrize("spent", [Plan(), Plan((EventRun(PoissonGaussian(30.0, 0.05), 7),))])
def test_the_table_is_the_accountant_where_little_is_spent(spent: Plan) -> None:
    """There the best order lies between those of the grid, another one at each position."""
    plan = NoiseSchedule("linear", 0.5).plan(20.0, 0.1, 60)
    table = EpsilonClock(plan, delta=DELTA, spent=spent).table()
    assert 0.01 < table[1] < table[-1] < 0.5
    for position in (1, 2, 7, 20, 41, 60):
        alone = epsilon_of(spent + plan.slice(0, position), delta=DELTA)
        assert table[position] == pytest.approx(alone, rel=1e-9)

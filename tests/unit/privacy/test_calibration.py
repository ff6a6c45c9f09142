"""Calibration inverts accounting, on the private side."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import (
    calibrate_factors,
    calibrate_noise_multiplier,
    calibrate_noise_schedule,
    largest_within,
    max_steps,
    noise,
)
from dpsweep.privacy.events import EventRun, Gaussian, NonPrivate, Plan, PoissonGaussian
from dpsweep.privacy.schedules import SHAPES, NoiseSchedule

BUDGET = PrivacyBudget(target_epsilon=2.0, delta=1e-5)


# 24 values x 20 steps at epsilon 2. The published starts of the last three bent shapes come from a
# coarser grid of orders and lie up to 0.4% higher.
@pytest.mark.parametrize(
    ("shape", "end_ratio", "start"),
    [
        ("constant", 1.0, 0.92309),
        ("linear", 0.35, 2.28327),
        ("linear", 2.857, 0.79915),
        ("cosine", 0.35, 2.34454),
        ("exponential", 0.35, 2.31453),
        ("exponential", 2.857, 0.81009),
        ("step", 0.35, 2.44756),
    ],
)
def test_published_starts(shape: str, end_ratio: float, start: float) -> None:
    values, counts = noise._distinct(NoiseSchedule(shape, end_ratio).factors(24))
    counts = tuple(20 * count for count in counts)
    result = calibrate_factors(BUDGET, values, counts, 0.01)
    assert start * (1 - 5e-3) < result < start * (1 + 1e-4)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    end_ratio=st.floats(0.3, 3),
    target=st.floats(0.05, 20),
    rate=st.floats(1e-4, 1),
    steps=st.integers(1, 300),
)
def test_the_start_is_within_and_a_thousandth_less_is_not(
    shape: str, end_ratio: float, target: float, rate: float, steps: int
) -> None:
    budget = PrivacyBudget(target_epsilon=target, delta=1e-5)
    schedule = NoiseSchedule(shape, 1.0 if shape == "constant" else end_ratio)
    start = calibrate_noise_schedule(budget, schedule=schedule, sample_rate=rate, steps=steps)

    def epsilon(value: float) -> float:
        return epsilon_of(schedule.plan(value, rate, steps), delta=1e-5)

    assert epsilon(start) <= target
    assert epsilon(start * (1 - 1e-3)) > target


@pytest.mark.parametrize(
    "shape",
    ["constant", "cosine"]
    + [pytest.param(shape, marks=pytest.mark.slow) for shape in ("linear", "exponential", "step")],
)
def test_the_same_for_pld(shape: str) -> None:
    schedule = NoiseSchedule(shape, 1.0 if shape == "constant" else 0.6)
    arguments = {"schedule": schedule, "sample_rate": 0.2, "steps": 12}
    start = calibrate_noise_schedule(BUDGET, **arguments, accountant="pld")

    def epsilon(value: float) -> float:
        return epsilon_of(schedule.plan(value, 0.2, 12), delta=1e-5, accountant="pld")

    assert epsilon(start) <= 2.0
    assert epsilon(start * (1 - 1e-3)) > 2.0
    assert start < calibrate_noise_schedule(BUDGET, **arguments)


def test_what_comes_before_is_paid_from_the_same_budget() -> None:
    before = Plan((EventRun(Gaussian(5.0), phase="normalize"),))
    schedule = NoiseSchedule("cosine", 0.5)
    arguments = {"schedule": schedule, "sample_rate": 0.01, "steps": 200}
    start = calibrate_noise_schedule(BUDGET, **arguments, before=before)
    assert start > calibrate_noise_schedule(BUDGET, **arguments)
    total = epsilon_of(before + schedule.plan(start, 0.01, 200), delta=1e-5)
    assert 0.999 * 2.0 < total <= 2.0


@pytest.mark.parametrize(
    "before", [Plan((EventRun(Gaussian(1.0)),)), Plan((EventRun(NonPrivate()),))]
)
def test_a_spent_budget_is_infeasible(before: Plan) -> None:
    with pytest.raises(InfeasibleBudgetError) as caught:
        calibrate_noise_schedule(
            BUDGET, schedule=NoiseSchedule(), sample_rate=0.1, steps=10, before=before
        )
    assert "already cost" in str(caught.value)
    assert caught.value.fix
    assert max_steps(BUDGET, sample_rate=0.1, noise_multiplier=1.0, before=before) == 0


def test_more_noise_than_the_bracket_is_infeasible() -> None:
    with pytest.raises(InfeasibleBudgetError, match="no noise multiplier keeps"):
        calibrate_noise_multiplier(
            PrivacyBudget(target_epsilon=1e-4, delta=1e-12), sample_rate=1.0, steps=10**9
        )


@pytest.mark.parametrize(
    ("rate", "sigma", "target", "rdp", "pld"),
    [
        (0.01, 1.0, 2.0, 881, 1201),
        (0.004, 1.1, 3.0, 20923, 24168),
        (0.02, 1.5, 1.0, 212, 268),
        (0.1, 15.0, 1.0, 1363, 1599),
    ],
)
def test_last_allowed_steps(rate: float, sigma: float, target: float, rdp: int, pld: int) -> None:
    budget = PrivacyBudget(target_epsilon=target, delta=1e-5)
    arguments = {"sample_rate": rate, "noise_multiplier": sigma}
    assert max_steps(budget, **arguments) == rdp
    # The published PLD values come from a ten times coarser discretisation.
    assert pld <= max_steps(budget, **arguments, accountant="pld") <= pld * 1.01


def test_steps_are_rounded_down_and_count_what_was_before() -> None:
    before = Plan((EventRun(PoissonGaussian(1.0, 0.01), 800),))
    arguments = {"sample_rate": 0.01, "noise_multiplier": 1.0, "before": before}
    assert max_steps(BUDGET, **arguments) == 81
    tiny = PrivacyBudget(target_epsilon=0.5, delta=1e-5)
    assert max_steps(tiny, sample_rate=0.5, noise_multiplier=0.5) == 0


def test_unbounded_steps_are_refused() -> None:
    with pytest.raises(BadInputError, match="more than 1e"):
        max_steps(BUDGET, sample_rate=1e-6, noise_multiplier=1e4)


@pytest.mark.parametrize(
    "wrong",
    [{"sample_rate": 0}, {"sample_rate": 1.1}, {"steps": 0}, {"steps": 1.5}, {"accountant": "gdp"}],
)
def test_arguments_are_checked(wrong: dict) -> None:
    with pytest.raises(BadInputError, match=next(iter(wrong))):
        calibrate_noise_multiplier(BUDGET, **{"sample_rate": 0.1, "steps": 10, **wrong})


def test_a_cosine_of_a_thousand_steps_takes_about_a_second_at_most() -> None:
    schedule = NoiseSchedule("cosine", 0.351)
    start = time.process_time()
    first = calibrate_noise_schedule(BUDGET, schedule=schedule, sample_rate=0.0101, steps=1000)
    assert time.process_time() - start < 2.0
    start = time.process_time()
    again = calibrate_noise_schedule(BUDGET, schedule=schedule, sample_rate=0.0101, steps=1000)
    assert time.process_time() - start < 0.05
    assert first == again


@pytest.mark.parametrize(
    "epsilon",
    [
        lambda sigma: 10 / sigma,
        lambda sigma: math.ceil(40 / sigma) / 4,  # a staircase
        lambda sigma: 0.0 if sigma > 5 else math.nan,  # falls to nothing at once
        lambda sigma: 2.0 if sigma >= 3.7 else math.inf,
    ],
    ids=["smooth", "stairs", "cliff", "exact"],
)
@pytest.mark.parametrize("guess", [(0.01, 0.02), (4.0, 6.0), (500.0, 900.0)])
def test_the_smallest_noise_is_within_and_close(epsilon, guess) -> None:
    noise_multiplier = noise._smallest(epsilon, 2.0, *guess, 1e-6)
    assert epsilon(noise_multiplier) <= 2.0
    assert not epsilon(noise_multiplier * (1 - 3e-6)) <= 2.0 or epsilon(noise_multiplier) == 2.0


def test_next_to_no_noise_is_the_least_one() -> None:
    assert noise._smallest(lambda sigma: 1.0, 2.0, 1.0, 2.0, 1e-6) < noise._LEAST_NOISE


@settings(max_examples=300, deadline=None)
@given(offset=st.floats(0, 0.98), slope=st.floats(0.1, 30), power=st.floats(0.6, 1.8))
def test_the_largest_number_that_fits_is_come_by_whatever_part_of_its_cost_is_fixed(
    offset: float, slope: float, power: float
) -> None:
    """Probes cost what they cost: what they leave was not seen where they took three quarters."""
    fits = largest_within(lambda x: offset + slope * x**power, 1.0, close=5e-4)
    assert fits is not None
    assert 0.9 <= offset + slope * fits**power <= 1


def test_little_epsilon_needs_the_least_noise_too() -> None:
    """The best order, of which there is no curve on the grid, is found while calibrating."""
    budget = PrivacyBudget(target_epsilon=0.07, delta=1e-8)
    start = calibrate_noise_schedule(
        budget, schedule=NoiseSchedule("cosine", 0.5), sample_rate=0.01, steps=50
    )

    def epsilon(noise: float) -> float:
        return epsilon_of(NoiseSchedule("cosine", 0.5).plan(noise, 0.01, 50), delta=1e-8)

    assert epsilon(start) <= 0.07 < epsilon(start * (1 - 1e-5))


def test_pld_is_asked_where_the_renyi_bound_has_no_noise_that_will_do():
    """At a tiny delta that bound has an epsilon of its own, whatever the noise."""
    budget = PrivacyBudget(1e-4, 1e-12)
    with pytest.raises(InfeasibleBudgetError):
        calibrate_noise_multiplier(budget, sample_rate=1, steps=1)
    noise = calibrate_noise_multiplier(budget, sample_rate=1, steps=1, accountant="pld")

    def epsilon(noise):
        plan = Plan((EventRun(PoissonGaussian(noise, 1), 1),))
        return epsilon_of(plan, delta=1e-12, accountant="pld")

    assert epsilon(noise) <= 1e-4 < epsilon(noise * (1 - 1e-3))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(("delta", "steps"), [(1e-200, 100), (1e-300, 100_000)])
def test_a_tiny_delta_asks_for_noise_that_is_found(accountant, delta, steps):
    budget = PrivacyBudget(target_epsilon=0.1, delta=delta)
    noise = calibrate_noise_multiplier(budget, sample_rate=0.1, steps=steps, accountant=accountant)

    def epsilon(multiplier):
        plan = Plan((EventRun(PoissonGaussian(multiplier, 0.1), steps),))
        return epsilon_of(plan, delta=delta, accountant=accountant)

    assert 0.09 < epsilon(noise) <= 0.1 < epsilon(noise * 0.99)

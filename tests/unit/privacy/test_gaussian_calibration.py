"""Steps and noise of full-batch Gaussians invert their accounting, on the private side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy.accountants import analytic_gaussian_epsilon, epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import gaussian_noise, gaussian_steps
from dpsweep.privacy.events import EventRun, Gaussian, Plan

DELTA = 1e-5
ACCOUNTANTS = st.sampled_from(["rdp", "pld"])


def epsilon(noise_multiplier: float, steps: int, accountant: str) -> float:
    plan = Plan((EventRun(Gaussian(noise_multiplier), steps),)) if steps else Plan()
    return epsilon_of(plan, delta=DELTA, accountant=accountant)


def test_known_answer() -> None:
    """200 steps at 40 are mu-GDP with mu = sqrt(200) / 40, epsilon 1.356467 at delta 1e-5."""
    mu = math.sqrt(200) / 40
    assert mu == pytest.approx(0.353553, abs=1e-6)
    assert analytic_gaussian_epsilon(mu, DELTA) == pytest.approx(1.356467, abs=1e-6)
    assert epsilon(40.0, 200, "pld") == pytest.approx(1.356467, abs=1e-6)
    budget = PrivacyBudget(1.356468, DELTA)
    assert gaussian_steps(budget, noise_multiplier=40.0, accountant="pld") == 200
    assert gaussian_noise(budget, steps=200, accountant="pld") == pytest.approx(40.0, rel=1e-6)


def test_exact_accounting_buys_steps() -> None:
    """The Renyi bound is above the exact curve: fewer steps, more noise."""
    budget = PrivacyBudget(3.0, DELTA)
    steps = {a: gaussian_steps(budget, noise_multiplier=20.0, accountant=a) for a in ("rdp", "pld")}
    noise = {a: gaussian_noise(budget, steps=200, accountant=a) for a in ("rdp", "pld")}
    assert steps["rdp"] < 0.9 * steps["pld"]
    assert noise["rdp"] > 1.05 * noise["pld"]


@settings(max_examples=60, deadline=None)
@given(target=st.floats(0.05, 20), noise=st.floats(0.5, 200), accountant=ACCOUNTANTS)
def test_one_more_step_is_over_the_target(target: float, noise: float, accountant: str) -> None:
    steps = gaussian_steps(
        PrivacyBudget(target, DELTA), noise_multiplier=noise, accountant=accountant
    )
    assert epsilon(noise, steps, accountant) <= target
    assert epsilon(noise, steps + 1, accountant) > target


@settings(max_examples=60, deadline=None)
@given(target=st.floats(0.05, 20), steps=st.integers(1, 100_000), accountant=ACCOUNTANTS)
def test_less_noise_is_over_the_target(target: float, steps: int, accountant: str) -> None:
    noise = gaussian_noise(PrivacyBudget(target, DELTA), steps=steps, accountant=accountant)
    assert epsilon(noise, steps, accountant) <= target
    assert epsilon(noise * (1 - 1e-8), steps, accountant) > target


def test_noise_and_steps_invert_each_other() -> None:
    budget = PrivacyBudget(2.0, DELTA)
    for accountant in ("rdp", "pld"):
        for steps in (1, 29, 1000):
            noise = gaussian_noise(budget, steps=steps, accountant=accountant)
            assert gaussian_steps(budget, noise_multiplier=noise, accountant=accountant) == steps


def test_what_cannot_be_met_is_refused() -> None:
    budget = PrivacyBudget(2.0, DELTA)
    assert gaussian_steps(PrivacyBudget(0.01, DELTA), noise_multiplier=1.0) == 0
    with pytest.raises(InfeasibleBudgetError, match="100000000 full-batch steps"):
        gaussian_noise(PrivacyBudget(1e-6, 1e-12), steps=10**8)
    with pytest.raises(BadInputError, match="noise_multiplier"):
        gaussian_steps(budget, noise_multiplier=0.0)
    with pytest.raises(BadInputError, match="steps"):
        gaussian_noise(budget, steps=0)
    with pytest.raises(BadInputError, match="accountant"):
        gaussian_noise(budget, steps=1, accountant="prv")  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="more than 1e\\+09 steps"):
        gaussian_steps(budget, noise_multiplier=1e6)

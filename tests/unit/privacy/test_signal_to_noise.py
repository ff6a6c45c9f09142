"""Signal that a plan leaves over its noise."""

from __future__ import annotations

import math

import pytest

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.privacy.signal_to_noise import HOPELESS, refuse_drowned, signal_to_noise

STEP = PoissonGaussian(40.0, 0.1)


def plan_of(*runs: EventRun) -> Plan:
    return Plan(runs)


def test_it_is_mu_times_the_records_over_training_steps_alone() -> None:
    steps = EventRun(STEP, 100)
    assert signal_to_noise(plan_of(steps), 2000) == pytest.approx(0.1 * 2000 / 40 * 10)
    full = EventRun(Gaussian(40.0), 4)
    assert signal_to_noise(plan_of(full), 2000) == pytest.approx(2000 / 40 * 2)
    both = math.hypot(50, 100)
    assert signal_to_noise(plan_of(steps, full), 2000) == pytest.approx(both)
    others = (EventRun(Gaussian(1.0), phase="normalize"), EventRun(STEP, 7, part="validation"))
    assert signal_to_noise(plan_of(*others, steps), 2000) == signal_to_noise(plan_of(steps), 2000)


def test_no_noise_is_all_signal_and_other_events_say_nothing() -> None:
    assert signal_to_noise(plan_of(EventRun(PoissonGaussian(0.0, 0.1))), 2000) == math.inf
    assert signal_to_noise(plan_of(EventRun(STEP), EventRun(Laplace(3.0))), 2000) is None
    assert signal_to_noise(plan_of(EventRun(STEP, phase="normalize")), 2000) is None
    assert signal_to_noise(Plan(), 2000) is None


def test_what_drowns_is_refused() -> None:
    plan = plan_of(EventRun(STEP, 100))
    for signal in (None, HOPELESS, 50.0):
        refuse_drowned(signal, plan, epsilon=1.0, delta=1e-5)
    with pytest.raises(InfeasibleBudgetError, match=r"100 steps would carry 0\.99 standard"):
        refuse_drowned(0.99, plan, epsilon=1.0, delta=1e-5)

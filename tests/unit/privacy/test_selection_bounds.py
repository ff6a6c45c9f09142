"""Bounds on the trials of a selection: never below the exact price, and no dearer plan gets in."""

import json
import math

import numpy as np
import pytest
from scipy import special

from dpsweep.foundation.errors import BadInputError, LedgerError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.calculator import account_epsilon
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.selection import bounds
from dpsweep.privacy.selection.bounds import (
    EPSILONS,
    ProfileBound,
    bound_of,
    dearest,
    deltas_of,
    read_bound,
)
from dpsweep.privacy.selection.number import Selection

DELTA = 1e-5


def trial(noise_multiplier):
    return Plan((EventRun(PoissonGaussian(noise_multiplier, 0.01), 1000),))


# Noise multiplier, mean, eta and epsilon of the best of K trials of epsilon 1, 2 and 3 by the theorem.
PRICES = [
    (1.51327, 10, 0, 1.373), (1.51327, 10, 0.5, 1.427), (1.51327, 10, 1, 1.470),
    (1.51327, 50, 0, 1.629), (1.51327, 50, 1, 1.841),
    (1.02239, 10, 0, 2.587), (1.02239, 10, 1, 2.749), (1.02239, 50, 1, 3.425),
    (0.86468, 10, 0.5, 3.857), (0.86468, 50, 0, 4.447),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("noise", "mean", "shape", "price"), PRICES)
def test_its_price_is_that_of_the_exact_profile(noise, mean, shape, price):
    """``account`` prices the same release without a grid; what is kept of it costs no less."""
    ours = bound_of([trial(noise)], "pld").selected(Selection(mean, shape), delta=DELTA)
    segment = {
        "event": "repeat_and_select", "mean": mean, "shape": shape, "of": trial(noise).to_json(),
    }  # fmt: skip
    exact = account_epsilon([segment], delta=DELTA, accountant="pld")["epsilon"]
    assert f"{exact:.3f}" == f"{price:.3f}"
    assert exact - 2e-4 <= ours <= exact + 2e-3
    assert ours < bound_of([trial(noise)], "rdp").selected(Selection(mean, shape), delta=DELTA)


def test_the_largest_of_several_profiles_covers_each():
    """Of two plans each is the dearer one somewhere: no single one bounds the other."""
    low = Plan((EventRun(PoissonGaussian(0.7, 0.001), 1000),))
    high = Plan((EventRun(PoissonGaussian(5.0, 0.5), 30),))
    both = bound_of([low, high], "pld")
    for plan, other in ((low, high), (high, low)):
        assert both.covers(plan)
        assert not bound_of([other], "pld").covers(plan)
        alone = bound_of([plan], "pld")
        assert both.epsilon(delta=DELTA) >= alone.epsilon(delta=DELTA)
        at = np.linspace(0, 8, 777)
        assert np.all(both.profile(at) >= alone.profile(at) * (1 - 1e-12))
    assert dearest([low, high, low], "pld") == [0, 1]


def test_between_its_points_it_is_not_below_the_profile():
    plan = Plan((EventRun(Gaussian(2.0), 3),))  # its profile is known
    bound = bound_of([plan], "pld")
    mu = math.sqrt(3) / 2
    at = np.random.default_rng(0).uniform(0, 4, 500)
    from scipy.stats import norm

    exact = norm.cdf(mu / 2 - at / mu) - np.exp(at) * norm.cdf(-mu / 2 - at / mu)
    ours = bound.profile(at)
    assert np.all(ours >= exact * (1 - 1e-9))
    assert np.all(ours <= exact * 1.01 + 1e-12)
    below = bound.profile(-at)
    assert below == pytest.approx(1 - np.exp(-at) * (1 - ours))


def test_each_part_of_the_records_counts_and_public_ones_do_not():
    scores = Plan((EventRun(Gaussian(20.0), 10, part="validation"),))
    base = trial(1.5)
    assert np.all(deltas_of(base + scores) == np.maximum(deltas_of(base), deltas_of(scores)))
    assert bound_of([base], "pld").covers(base + scores)
    assert not bound_of([base], "pld").covers(base + scores + scores + scores + scores)
    assert np.all(deltas_of(base.labelled("public")) == 0)
    free = bound_of([base.labelled("public")], "pld")
    assert free.selected(Selection(10, 1), delta=DELTA) == free.epsilon(delta=DELTA) == 0


@pytest.mark.parametrize("shape", [0, 2, "poisson"])
def test_a_plan_without_an_epsilon_has_no_price(shape):
    endless = Plan((EventRun(Gaussian(0.0)),))
    assert bound_of([endless], "pld").selected(Selection(5, shape), delta=DELTA) == math.inf
    assert not bound_of([trial(1.5)], "pld").covers(endless)
    with pytest.raises(BadInputError, match="no plans"):
        bound_of([], "pld")


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_what_is_written_down_is_the_same_bound(accountant):
    bound = bound_of([trial(1.5)], accountant)
    again = read_bound(json.loads(json.dumps(bound.to_json())))
    assert (type(again), again.accountant) == (type(bound), accountant)
    for mean, shape in ((10, 0), (30, 2), (3, "poisson")):
        selection = Selection(mean, shape)
        assert again.selected(selection, delta=DELTA) == bound.selected(selection, delta=DELTA)
    assert again.covers(trial(1.5))
    assert not again.covers(trial(1.49))


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"profile": []},
        {"profile": [], "step": 0.004},
        {"profile": [0.1, 0.2], "step": 0.004},
        {"profile": [1.5, 0.2], "step": 0.004},
        {"profile": [0.5, 0.2], "step": 0.002},
        {"profile": [0.0] * (len(EPSILONS) + 1), "step": 0.004},
        {"curve": [1.0, 2.0]},
    ],
)
def test_a_record_that_holds_no_bound_is_refused(record):
    with pytest.raises(LedgerError, match="no bound that this version knows"):
        read_bound(record)


def test_beyond_its_last_point_it_stays():
    bound = ProfileBound(np.array([0.5, 0.25]))
    assert bound.profile(np.array([0.0, 0.004, 9.0])).tolist() == [0.5, 0.25, 0.25]
    assert bound.epsilon(delta=0.2) == math.inf


def best_of_rare(noise, rate, mean, delta):
    """Return an epsilon that the best of K trials of one step exceeds, with K geometric.

    The event is that the best trial's output lies above a threshold, the scores being the outputs;
    of all thresholds and both directions the largest epsilon counts.
    """
    place = np.linspace(0.0, 12.0 * max(noise, 1.0), 20001)
    without = special.ndtr(-place / noise)
    within = (1 - rate) * without + rate * special.ndtr(-(place - 1) / noise)

    def happens(chance):  # 1 - G(1 - chance), with G(x) = x / (mean - (mean - 1) x)
        return mean * chance / (1 + (mean - 1) * chance)

    gap = happens(within) - delta
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = np.where(gap > 0, np.log(gap / happens(without)), 0.0)
    return float(np.nanmax(epsilons))


@pytest.mark.parametrize(
    ("noise", "rate", "mean"),
    [(0.3, 5.6e-9, 1e6), (0.3, 5.6e-9, 1e5), (0.4, 5.6e-8, 1e4), (1.0, 1e-6, 1e3)],
)
def test_a_rare_loss_in_each_of_many_trials_is_not_free(noise, rate, mean):
    """Each of these plans has epsilon 0 at delta 1e-6, by which it was once taken to be free."""
    trial = Plan((EventRun(PoissonGaussian(noise, rate), 1),))
    assert epsilon_of(trial, delta=1e-6) == 0
    price = bound_of([trial], "pld").selected(Selection(mean, 1), delta=1e-8)
    assert price >= best_of_rare(noise, rate, mean, 1e-8) > 0
    assert bound_of([Plan(())], "pld").selected(Selection(mean, 1), delta=1e-8) == 0


def test_a_plan_that_is_dearer_at_a_smaller_delta_is_not_covered():
    bound = bound_of([Plan((EventRun(Gaussian(100.0), 1),))], "pld")
    assert bound.covers(Plan((EventRun(Gaussian(100.0), 1),)))
    assert not bound.covers(Plan((EventRun(PoissonGaussian(0.3, 5.6e-9), 1),)))


def test_what_rounding_may_take_from_a_compared_plan_counts(monkeypatch):
    plan = Plan((EventRun(PoissonGaussian(1.0, 0.01), 10),))
    bound = bound_of([plan], "pld")
    assert bound.covers(plan)
    monkeypatch.setattr(bounds, "_rounding_of", lambda plan: 1e-6)
    assert not bound.covers(plan)

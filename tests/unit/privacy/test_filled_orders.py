"""Selections and filters where little is spent: the best order is not on the sparse grid."""

import numpy as np
import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import (
    EventRun,
    Gaussian,
    Plan,
    PoissonGaussian,
    PoissonSubset,
    RepeatAndSelect,
)
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.orders import FILLED_ORDERS
from dpsweep.privacy.selection import curves
from dpsweep.privacy.selection.bounds import RenyiBound, bound_of, dearest, read_bound
from dpsweep.privacy.selection.curves import envelope, orders_of, selection_epsilon
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import SubsetBound

DELTA = 1e-5


def sampled(noise, rate, steps):
    return Plan((EventRun(PoissonGaussian(noise, rate), steps),))


# Noise, rate, steps and delta of a trial; mean and shape of the selection.
CHEAP = [
    (3.0177217689959357, 0.00474074, 100, 1e-6, 10, 0),  # epsilon .1
    (6.0, 0.00948, 316, 1e-5, 10, 1),
    (10.0, 0.001, 100, 1e-5, 5, "poisson"),
    (2.34, 0.0006768, 11, 2.4e-6, 100, 1),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "mean", "shape"), CHEAP)
def test_a_cheap_selection_costs_within_a_percent_of_what_the_calculator_says(
    noise, rate, steps, delta, mean, shape
):
    """With the grid alone it was up to 44% more."""
    trial = sampled(noise, rate, steps)
    bound = bound_of([trial], "rdp")
    event = Plan((EventRun(RepeatAndSelect(mean, shape, trial), 1),))
    exact = epsilon_of(event, delta=delta)
    price = bound.selected(Selection(mean, shape), delta=delta)
    assert 0.99 * exact <= price <= 1.01 * exact
    assert bound.covers(trial)
    on_grid = RenyiBound(bound.curve[np.isin(orders_of(bound.curve), rdp.ORDERS)])
    assert on_grid.selected(Selection(mean, shape), delta=delta) > 1.005 * price


def test_a_search_on_a_secret_part_is_no_dearer_either():
    trial, selection = sampled(3.0, 0.05, 20), Selection(5, 1)
    bound = SubsetBound.of([trial], [Plan()], rate=0.1, final_epsilon=1, accountant="rdp")
    search = PoissonSubset(0.1, Plan((EventRun(RepeatAndSelect(5, 1, trial), 1),)))
    exact = epsilon_of(Plan((EventRun(search, 1),)), delta=DELTA)
    assert exact <= bound.selected(selection, delta=DELTA) <= 1.02 * exact


def test_an_older_record_keeps_its_orders_and_its_price():
    trial = sampled(*CHEAP[0][:3])
    old = RenyiBound(plan_curve(multiset(trial)) * (1 + 1e-9))
    read = read_bound(old.to_json())
    assert len(read.curve) == len(rdp.ORDERS) == 160
    assert read.covers(trial)
    assert read.selected(Selection(10, 0), delta=1e-6) == pytest.approx(0.25142, abs=1e-4)
    new = bound_of([trial], "rdp")
    assert np.array_equal(read_bound(new.to_json()).curve, new.curve)
    with pytest.raises(BadInputError, match="no grid has as many"):
        orders_of(np.zeros(161))


def test_a_curve_at_more_orders_is_none_that_a_plan_exceeds():
    """With many multipliers the further orders are bounded, by smaller ones and by chords."""
    many = Plan(tuple(EventRun(PoissonGaussian(s, 0.004), 1) for s in np.linspace(4, 9, 400)))
    few = sampled(5.0, 0.004, 400)
    exact = [plan_curve(multiset(plan), FILLED_ORDERS) for plan in (many, few)]
    for plan, curve in zip((many, few), exact):
        ours = envelope([plan])
        assert len(ours) == len(FILLED_ORDERS)
        assert np.all(ours >= curve)
        event = Plan((EventRun(RepeatAndSelect(10, 1, plan), 1),))
        price = selection_epsilon(ours, Selection(10, 1), delta=DELTA)
        assert price <= 1.03 * epsilon_of(event, delta=DELTA)
    both = envelope([many, few])
    assert np.all(both >= np.max(exact, axis=0))
    assert RenyiBound(both).covers(many)
    assert RenyiBound(both).covers(few)
    more = sampled(5.0, 0.004, 402)
    assert not RenyiBound(both).covers(more)
    assert dearest([many, few], "rdp") == sorted(set(np.argmax(exact, axis=0).tolist()))


@pytest.mark.parametrize(
    ("plans", "is_filled"),
    [
        ([sampled(1.5, 0.01, 1000)], False),
        ([sampled(6.0, 0.00948, 316)], True),
        ([sampled(6.0, 0.00948, 316), sampled(1.5, 0.01, 1000)], False),
        ([Plan((EventRun(Gaussian(0.0)),))], False),
        ([Plan()], True),
    ],
)
def test_more_orders_are_kept_where_no_plan_spends_much(plans, is_filled):
    assert len(envelope(plans)) == len(FILLED_ORDERS if is_filled else rdp.ORDERS)


@pytest.mark.parametrize("delta", [1e-4, 1e-12])
@pytest.mark.parametrize("mean", [2, 1000])
@pytest.mark.parametrize("shape", [0, 1, "poisson"])
def test_where_they_are_not_kept_they_would_not_help(delta, mean, shape):
    """Of trials just dear enough for the grid."""
    for rate in (0.001, 0.01, 0.1, 1.0):
        low, high = 0.3, 300.0
        while high / low > 1.01:
            noise = (low * high) ** 0.5
            kept = len(envelope([sampled(noise, rate, 50)]))
            low, high = (low, noise) if kept == len(FILLED_ORDERS) else (noise, high)
        trial, selection = sampled(low, rate, 50), Selection(mean, shape)
        assert len(envelope([trial])) == len(rdp.ORDERS)
        filled = envelope([trial], is_filled=True)
        ours = selection_epsilon(envelope([trial]), selection, delta=delta)
        assert ours <= 1.001 * selection_epsilon(filled, selection, delta=delta)


def test_a_filter_takes_the_order_that_buys_the_most():
    """Powers of two bought 19 trials in the place of 21."""
    trial = sampled(5.2, 0.00474, 100)
    chosen = RenyiFilter.choose([trial], target_epsilon=0.15, delta=DELTA)
    bought = {
        order: RenyiFilter.at(order, target_epsilon=0.15, delta=DELTA).budget
        / RenyiFilter.at(order, target_epsilon=0.15, delta=DELTA).cost(trial)["private"]
        for order in (*range(60, 200), 128)
    }
    assert bought[chosen.order] > 0.995 * max(bought.values())
    assert bought[chosen.order] > 1.1 * bought[128]


def test_what_takes_long_is_computed_once(monkeypatch):
    trial = sampled(6.1, 0.00948, 316)
    bound, asked = bound_of([trial], "rdp"), []
    as_it_is = curves.rounded_down
    monkeypatch.setattr(curves, "rounded_down", lambda *a: asked.append(a) or as_it_is(*a))
    assert bound.covers(trial)
    assert not asked

"""The Renyi filter: its budget, its order, its costs, and who holds how much of it."""

from __future__ import annotations

import itertools
import json
import math
import random

import numpy as np
import pytest
from dp_accounting import rdp as reference
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.base import RESERVATION_SLACK
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import (
    EventRun,
    Gaussian,
    Laplace,
    NonPrivate,
    Plan,
    PoissonGaussian,
    PoissonSubset,
    RepeatAndSelect,
)
from dpsweep.privacy.events.multiset import multiset, plan_curve

DELTA = 1e-5
FOUR = [(1.0, 0.01), (2.0, 0.01), (1.5, 0.04), (1.2, 0.005)]


def dp_sgd(sigma, rate, steps=1000):
    return Plan((EventRun(PoissonGaussian(sigma, rate), steps),))


def copies(chosen, plan):
    """How many copies of a plan the filter admits, as a real number."""
    return chosen.budget / chosen.cost(plan)["private"]


@pytest.mark.parametrize("order", [1.1, 2, 3.8, 8, 63, 1024, 32768])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_the_budget_is_the_conversion_solved_for_the_cost_and_never_above(order, delta):
    for epsilon in (0.5, 2.0, 300.0):
        budget = epsilon - (math.log1p(-1 / order) + math.log(1 / (delta * order)) / (order - 1))
        if budget <= 0:
            with pytest.raises(BadInputError, match="budget must be > 0"):
                RenyiFilter.at(order, target_epsilon=epsilon, delta=delta)
            continue
        chosen = RenyiFilter.at(order, target_epsilon=epsilon, delta=delta)
        assert chosen.budget == pytest.approx(budget, rel=1e-9)
        # Both conversions, ours and dp_accounting's, of a study that has spent all of it.
        assert chosen.epsilon(chosen.budget) <= epsilon
        theirs = reference.compute_epsilon([order], [chosen.budget], delta)[0]
        assert epsilon * (1 - 1e-9) < theirs <= epsilon
        with pytest.raises(BadInputError, match="the largest one is"):
            RenyiFilter(order, budget * (1 + 1e-6), epsilon, delta)


def test_a_filter_survives_json_exactly():
    chosen = RenyiFilter.at(7.9, target_epsilon=2.0, delta=DELTA)
    assert RenyiFilter.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    with pytest.raises(BadInputError, match=r"order must be >= 1\.01"):
        RenyiFilter.at(1, target_epsilon=2.0, delta=DELTA)
    with pytest.raises(BadInputError, match="order must be <= 32768"):
        RenyiFilter.at(1e6, target_epsilon=2.0, delta=DELTA)


@pytest.mark.parametrize(
    ("epsilon", "order", "share"), [(2.0, 8, 0.91), (3.0, 7, 0.91), (8.0, 4, 0.99)]
)
@pytest.mark.parametrize("lengths", [(1000,) * 4, (881, 9000, 10, 3)])
def test_one_order_buys_nearly_what_each_plan_would_buy_at_its_own(epsilon, order, share, lengths):
    plans = [dp_sgd(*pair, steps) for pair, steps in zip(FOUR, lengths)]
    shared = RenyiFilter.choose(plans, target_epsilon=epsilon, delta=DELTA)
    assert round(shared.order) == order
    for plan in plans:
        candidates = [
            RenyiFilter.at(a, target_epsilon=epsilon, delta=DELTA)
            for a in rdp.ORDERS
            if epsilon - (math.log1p(-1 / a) + math.log(1 / (DELTA * a)) / (a - 1)) > 1e-6
        ]
        assert copies(shared, plan) >= share * max(copies(c, plan) for c in candidates)


def test_a_bad_order_is_ruinous():
    plan = dp_sgd(1.0, 0.01)
    good = RenyiFilter.choose([plan], target_epsilon=2.0, delta=DELTA)
    bad = RenyiFilter.at(10, target_epsilon=2.0, delta=DELTA)
    assert copies(bad, plan) == pytest.approx(0.03 * copies(good, plan), rel=0.1)
    # Three plans that would like a high order do not ruin the fourth: a median would.
    plans = [plan, *(dp_sgd(2.0, 0.01, 1000 + n) for n in range(3))]
    shared = RenyiFilter.choose(plans, target_epsilon=2.0, delta=DELTA)
    assert copies(shared, plan) > 0.7 * copies(good, plan)


def test_high_orders_are_looked_at_where_the_grid_ends_too_early():
    plan = dp_sgd(20.0, 0.001, 10)
    tiny = RenyiFilter.choose([plan], target_epsilon=1e-3, delta=DELTA)
    assert tiny.order in rdp.HIGH_ORDERS
    assert copies(tiny, plan) > 1
    # Where everything is free, the order with the largest budget is as good as any.
    free = RenyiFilter.choose([plan.labelled("public")], target_epsilon=1.0, delta=DELTA)
    assert free.order == rdp.HIGH_ORDERS[-1]


def test_what_no_filter_covers_is_refused():
    with pytest.raises(InfeasibleBudgetError, match="no plan to choose the order"):
        RenyiFilter.choose([], target_epsilon=2.0, delta=DELTA)
    for endless in (NonPrivate(), Gaussian(0.0), PoissonGaussian(0.0, 0.5)):
        plans = [dp_sgd(1.0, 0.01), dp_sgd(1.0, 0.01) + Plan((EventRun(endless),))]
        with pytest.raises(InfeasibleBudgetError, match="1 of 2 plans have no finite"):
            RenyiFilter.choose(plans, target_epsilon=2.0, delta=DELTA)
    many = Plan(tuple(EventRun(PoissonGaussian(s, 0.01)) for s in np.linspace(0, 1, 200)))
    with pytest.raises(InfeasibleBudgetError, match="1 of 1 plans"):
        RenyiFilter.choose([many], target_epsilon=2.0, delta=DELTA)
    with pytest.raises(InfeasibleBudgetError, match=r"epsilon=1e-06 at delta=1e-08 leaves nothing"):
        RenyiFilter.choose([dp_sgd(50.0, 0.001, 1)], target_epsilon=1e-6, delta=1e-8)
    with pytest.raises(BadInputError, match="delta must be in"):
        RenyiFilter.choose([dp_sgd(1.0, 0.01)], target_epsilon=1.0, delta=0)


events = st.one_of(
    st.builds(PoissonGaussian, st.floats(0.3, 20), st.floats(0, 1)),
    st.builds(Gaussian, st.floats(0.5, 50)),
    st.builds(Laplace, st.floats(0.5, 50)),
    st.builds(
        RepeatAndSelect,
        st.floats(1, 20),
        st.sampled_from([0.0, 1.0, "poisson"]),
        st.just(dp_sgd(3.0, 0.01, 10)),
    ),
    st.builds(PoissonSubset, st.floats(0.01, 1), st.just(dp_sgd(3.0, 0.01, 10))),
)
runs = st.builds(
    EventRun,
    events,
    st.integers(1, 50),
    st.just("train"),
    st.sampled_from(["private", "validation", "public"]),
)
plans = st.builds(Plan, st.lists(runs, max_size=6).map(tuple))


@given(plans, st.sampled_from([1.5, 3.8, 8, 63, 2048]))
def test_a_cost_is_the_curve_at_the_order_part_by_part(plan, order):
    chosen = RenyiFilter.at(order, target_epsilon=50.0, delta=DELTA)
    cost = chosen.cost(plan)
    assert set(cost) == {"private", "validation"}
    level = 1 if order > 1024 else 0
    grid = rdp.orders_at(level)
    orders = grid.tolist()
    for part, value in cost.items():
        curve = plan_curve(multiset(plan.part(part)), grid)
        assert value == pytest.approx(curve[orders.index(order)], rel=1e-9, abs=1e-300)


@given(plans, st.data())
def test_costs_add_up_whatever_the_order_and_the_cuts(plan, data):
    chosen = RenyiFilter.at(8, target_epsilon=2.0, delta=DELTA)
    cut = data.draw(st.integers(0, len(plan)))
    shuffled = list(plan.runs)
    random.Random(cut).shuffle(shuffled)
    whole = chosen.cost(plan)
    assert chosen.cost(Plan(tuple(shuffled))) == whole
    head, tail = chosen.cost(plan.slice(0, cut)), chosen.cost(plan.slice(cut, len(plan)))
    for part, value in whole.items():
        assert head[part] + tail[part] == pytest.approx(value, rel=1e-12, abs=1e-300)


def test_orders_between_those_of_the_grid_are_never_cheaper():
    plan = Plan(
        (EventRun(Gaussian(3.0), 2), EventRun(Laplace(5.0)), EventRun(PoissonGaussian(1, 0.1)))
    )
    costs = [
        RenyiFilter.at(a, target_epsilon=9.0, delta=DELTA).cost(plan)["private"]
        for a in (7.9, 7.95, 8, 100, 128, 1025, 2048)
    ]
    assert costs == sorted(costs)
    between = RenyiFilter.at(7.95, target_epsilon=9.0, delta=DELTA)
    assert between.cost(Plan((EventRun(Gaussian(3.0)),)))["private"] >= 7.95 / 18


def test_a_thousand_noise_multipliers_cost_milliseconds():
    import time

    chosen = RenyiFilter.at(8, target_epsilon=2.0, delta=DELTA)
    schedules = [
        Plan(
            tuple(EventRun(PoissonGaussian(s, 0.01)) for s in np.linspace(1, 2 + n, 1000).tolist())
        )
        for n in range(10)
    ]
    taken = []
    for schedule in schedules:
        start = time.process_time()
        chosen.cost(schedule)
        taken.append(time.process_time() - start)
    assert min(taken) < 0.05  # of the fastest: others may share the core


# --- Who holds how much ---------------------------------------------------------------------


def amount(private, validation=0.0):
    return {"private": private, "validation": validation}


@pytest.fixture
def account():
    return CompositionAccount(RenyiFilter.at(8, target_epsilon=2.0, delta=DELTA))


def test_a_reservation_is_held_until_it_is_settled(account):
    budget = account.composition.budget
    assert account.reserve(0, amount(0.6 * budget))
    assert account.num_in_flight == 1
    assert not account.fits(amount(0.6 * budget))
    assert not account.reserve(1, amount(0.6 * budget))
    assert account.fits(amount(0.6 * budget), trial=0)
    assert account.reserve(0, amount(7 * budget)), "a running trial keeps what it holds"
    assert account.committed["private"] == pytest.approx(0.6 * budget, rel=2e-9)
    assert account.committed["private"] > 0.6 * budget, "with room for rounding errors"
    account.settle(0, amount(0.1 * budget))
    assert account.num_in_flight == 0
    assert account.committed["private"] == pytest.approx(0.1 * budget, rel=1e-12)
    assert account.remaining["private"] == pytest.approx(0.9 * budget, rel=1e-12)
    assert account.reserve(1, amount(0.6 * budget))


def test_each_part_has_the_whole_budget(account):
    budget = account.composition.budget
    assert account.reserve(0, amount(0.9 * budget, 0.2 * budget))
    assert account.reserve(1, amount(0.05 * budget, 0.7 * budget))
    assert not account.reserve(2, amount(0.0, 0.2 * budget))
    assert account.reserve(2, amount(0.04 * budget, 0.05 * budget))


def test_a_paused_trial_holds_what_it_charged_and_then_its_whole_plan_again(account):
    budget = account.composition.budget
    assert account.reserve(0, amount(0.5 * budget))
    account.settle(0, amount(0.2 * budget))
    assert account.reserve(1, amount(0.6 * budget))
    assert not account.reserve(0, amount(0.5 * budget)), "0.2 + 0.6 is held, 0.3 more is too much"
    assert account.committed["private"] == pytest.approx(0.8 * budget)
    account.settle(1, amount(0.1 * budget))
    assert account.reserve(0, amount(0.5 * budget))
    assert account.committed["private"] == pytest.approx(0.6 * budget)
    account.settle(0, amount(0.1 * budget))
    assert account.settled(0)["private"] == pytest.approx(0.2 * budget), "never less than before"


def test_the_last_hair_of_the_budget(account):
    budget = account.composition.budget
    assert not account.reserve(0, amount(budget))
    assert account.reserve(0, amount(budget / (1 + 2 * RESERVATION_SLACK)))
    account.settle(0, amount(budget))
    assert account.committed["private"] <= budget
    assert not account.is_over
    assert not account.reserve(1, amount(1e-300))
    assert account.reserve(1, amount(0.0))
    account.settle(0, amount(math.nextafter(budget, 9)))
    assert account.is_over
    assert not account.reserve(2, amount(0.0)), "over the budget nothing is admitted, free or not"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_what_is_no_cost_fits_nowhere(account, wrong):
    assert not account.fits(amount(wrong))
    assert not account.reserve(0, amount(0.1, wrong))
    assert account.committed == amount(0.0, 0.0)
    account.settle(1, amount(wrong))
    assert account.committed["private"] == math.inf
    assert account.remaining["private"] == 0
    assert account.is_over


@given(st.lists(st.floats(0, 0.05), min_size=30, max_size=60), st.randoms())
def test_sums_are_exact_in_any_order(costs, shuffle):
    """Reserve and settle in any order: what is left is the sum of what was charged, to the bit."""
    totals = []
    for _ in range(2):
        account = CompositionAccount(RenyiFilter.at(8, target_epsilon=9.0, delta=DELTA))
        order = list(enumerate(costs))
        shuffle.shuffle(order)
        for trial, cost in order:
            assert account.reserve(trial, amount(2 * cost))
        shuffle.shuffle(order)
        for trial, cost in order:
            account.settle(trial, amount(cost))
        totals.append(account.committed["private"])
    assert totals[0] == totals[1]
    assert totals[0] == pytest.approx(math.fsum(costs), rel=1e-15, abs=1e-17)
    assert totals[0] >= math.fsum(costs) * (1 - 1e-15)


def test_ten_thousand_trials_take_a_second(account):
    import time

    start = time.process_time()
    for trial in itertools.count():
        if trial == 10_000:
            break
        assert account.reserve(trial, amount(account.composition.budget / 2e4))
        account.settle(trial, amount(account.composition.budget / 3e4))
        assert account.committed["private"] <= account.composition.budget
    assert time.process_time() - start < 2


@pytest.mark.parametrize("delta", [1e-5, 1e-7, 1e-9, 1e-12])
def test_a_gaussian_filter_of_a_small_epsilon_has_the_largest_budget(delta):
    """What its epsilon is rounded up by is no smooth function of the budget there."""
    for target in np.geomspace(1e-5, 0.1, 60):
        made = GaussianFilter.at(target_epsilon=float(target), delta=delta)
        assert analytic_gaussian_epsilon(math.sqrt(made.budget), delta) <= target
        assert analytic_gaussian_epsilon(math.sqrt(made.budget * (1 + 1e-6)), delta) > target

"""Events on a secret Poisson subset: known values, exact mechanisms, both accountants."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.calculator import account_epsilon
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
from dpsweep.privacy.events.losses import composed_loss, loss_of_profile, profile_of
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.events.poisson_subset import WHOLE_ORDERS, subset_profile, subset_rdp
from dpsweep.privacy.events.repeat_and_select import selected_profile

DELTA = 1e-5


def plan_of(*events):
    return Plan(tuple(EventRun(event) for event in events))


def gaussian_profile(noise):
    def delta(epsilons):
        top = epsilons * noise
        return ndtr(0.5 / noise - top) - np.exp(epsilons) * ndtr(-0.5 / noise - top)

    return delta


# --- Known values -----------------------------------------------------------------------------

SAMPLED = [  # noise, rate, epsilon, delta of the subsampled Gaussian by other means
    (0.7, 0.1, 0.1, 0.035439392),
    (0.7, 0.1, 1.0, 0.00390022035),
    (1.5, 0.1, 0.3, 0.000563131313),
    (1.5, 0.1, 1.0, 3.85335669e-07),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("noise", "rate", "epsilon", "delta"), SAMPLED)
def test_one_gaussian_on_a_subset_is_the_subsampled_gaussian(noise, rate, epsilon, delta):
    at = np.array([epsilon])
    assert subset_profile(gaussian_profile(noise), rate)(at)[0] == pytest.approx(delta, rel=1e-8)
    subset = PoissonSubset(rate, plan_of(Gaussian(noise)))
    for interval in (1e-3, 1e-4):
        on_grid = profile_of(subset.privacy_loss(interval))(at)[0]
        assert delta * (1 - 1e-8) <= on_grid <= delta * (1 + 3e-5 * (interval / 1e-4) ** 2)


def test_one_gaussian_on_a_subset_has_the_curve_of_the_subsampled_gaussian():
    subset = PoissonSubset(0.1, plan_of(Gaussian(1.5), Gaussian(1.5)))
    exact = PoissonGaussian(1.5 / math.sqrt(2), 0.1)
    whole = rdp.ORDERS[np.floor(rdp.ORDERS) == rdp.ORDERS]
    np.testing.assert_allclose(subset.renyi(whole), exact.renyi(whole), rtol=1e-3)
    low = whole[whole <= 64]
    np.testing.assert_allclose(subset.renyi(low), exact.renyi(low), rtol=1e-7)
    assert np.all(subset.renyi(rdp.ORDERS) >= exact.renyi(rdp.ORDERS) * (1 - 1e-7))


# q .01, 1000 steps, noise of search and final run, eta: of 10 runs on a tenth, then the final run.
# The profiles as they are come to what is known on a grid of 1e-3; the accountant makes them convex
# before it draws the subset, which no other source has.
SEARCHES = [
    (1.51327, 0, 0.9795926536, 0.9674, 1.1376, 1.2560),
    (1.51327, 1, 0.9975989625, 0.9824, 1.2251, 1.3338),
    (1.02239, 0, 1.9112758879, 1.8840, 2.3056, 2.5102),
    (1.02239, 1, 1.9478965042, 1.9229, 2.5680, 2.7572),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("noise", "shape", "known", "pld", "renyi", "zhu_wang"), SEARCHES)
def test_a_search_on_a_subset_and_a_final_run(noise, shape, known, pld, renyi, zhu_wang):
    base = Plan((EventRun(PoissonGaussian(noise, 0.01), 1000),))
    final = composed_loss(multiset(base), 1e-3)
    search = subset_profile(selected_profile(profile_of(final), 10, shape), 0.1)
    both = loss_of_profile(search, 1e-3).compose(final)
    assert both.get_epsilon_for_delta(DELTA) == pytest.approx(known, abs=1e-8)
    plan = plan_of(PoissonSubset(0.1, plan_of(RepeatAndSelect(10, shape, base)))) + base
    ours = epsilon_of(plan, delta=DELTA, accountant="pld")
    assert epsilon_of(base, delta=DELTA, accountant="pld") < ours < known
    assert ours == pytest.approx(pld, abs=2e-4)
    assert epsilon_of(plan, delta=DELTA) == pytest.approx(renyi, abs=2e-4)
    assert renyi < zhu_wang  # with their factor 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_limits(accountant):
    events = plan_of(Gaussian(2.0), Laplace(3.0))

    def epsilon(plan):
        return epsilon_of(plan, delta=DELTA, accountant=accountant)

    def at(rate, of=events):
        return epsilon(plan_of(PoissonSubset(rate, of)))

    assert at(1.0) == pytest.approx(epsilon(events), abs=1e-3)
    costs = [at(rate) for rate in (1e-6, 0.01, 0.1, 0.5, 0.999)]
    assert costs == sorted(costs)
    assert costs[0] < 1e-3
    assert costs[-1] <= epsilon(events) * 1.001
    assert at(0.1, plan_of(NonPrivate())) == math.inf
    assert at(0.1, plan_of(PoissonGaussian(2.0, 0.0))) == 0
    # A secret subset of a secret subset is one of the product of both rates.
    assert at(0.2, plan_of(PoissonSubset(0.5, events))) == pytest.approx(at(0.1), rel=3e-3)


def test_a_cost_without_end_is_not_sampled_away():
    tiny = PoissonSubset(0.01, plan_of(Gaussian(0.01)))
    for accountant in ("rdp", "pld"):
        assert epsilon_of(plan_of(tiny), delta=1e-9, accountant=accountant) > 500


# --- Exact finite mechanisms ------------------------------------------------------------------

EPSILONS = np.array([0.0, 0.01, 0.1, 0.3, 0.7, 1.2, 2.0, 4.0])
rows = st.lists(st.floats(-2, 2), min_size=4, max_size=4)


def divergence(one, other, epsilon):
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def profile_between(pairs):
    """Return the exact profile of a finite mechanism, the largest of all pairs, both directions."""

    def delta(epsilons):
        return np.array(
            [max(divergence(*p, e) for one, other in pairs for p in ((one, other), (other, one)))
             for e in epsilons]
        )  # fmt: skip

    return delta


def moment(one, other, order):
    return float((other * (one / other) ** float(order)).sum())


def mechanism(logits):
    """Return the chances of outputs on each subset of three records."""
    subsets = [frozenset(c) for n in range(4) for c in itertools.combinations(range(3), n)]
    weights = np.exp(np.array(logits))
    return dict(zip(subsets, weights / weights.sum(axis=1, keepdims=True)))


def on_subset(outputs, records, rate):
    """Return the chances of outputs if each of the records enters with probability ``rate``."""
    return sum(
        rate ** len(s) * (1 - rate) ** (len(records) - len(s)) * chances
        for s, chances in outputs.items()
        if s <= records
    )


def neighbors(outputs):
    return [(chances, outputs[s | {x}]) for s, chances in outputs.items() for x in {0, 1, 2} - s]


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(rows, min_size=8, max_size=8),
    rate=st.sampled_from([0.01, 0.1, 0.3, 0.8, 1.0]),
    order=st.sampled_from([2, 3, 5, 12, 40]),
)
def test_no_finite_mechanism_passes_the_bounds(logits, rate, order):
    outputs = mechanism(logits)
    pairs = neighbors(outputs)
    bound = subset_profile(profile_between(pairs), rate)(EPSILONS)
    whole = frozenset(range(3))
    ours = [
        (on_subset(outputs, whole, rate), on_subset(outputs, whole - {x}, rate)) for x in range(3)
    ]
    assert np.all(profile_between(ours)(EPSILONS) <= bound + 1e-12)
    if rate == 1:
        return
    orders = WHOLE_ORDERS[:40]
    both = [pair for one, other in pairs for pair in ((one, other), (other, one))]
    once = [max(math.log(moment(*pair, a)) / (a - 1) for pair in both) for a in orders]
    curve = subset_rdp(np.array(once), rate)[order - 2]
    for one, other in ours:
        for pair in ((one, other), (other, one)):
            spent = math.log(moment(*pair, order)) / (order - 1)
            assert spent <= curve + 1e-12


@settings(max_examples=25, deadline=None)
@given(
    logits=st.lists(rows, min_size=2, max_size=2),
    final=st.lists(rows, min_size=2, max_size=2),
    rate=st.sampled_from([0.05, 0.3, 0.8]),
)
def test_what_follows_on_all_records_is_added(logits, final, rate):
    """The distribution of a profile, composed with an exact one, is above the exact product."""
    (without, added), (one, other) = (
        [weights / weights.sum() for weights in np.exp(np.array(pair))] for pair in (logits, final)
    )
    once = loss_of_profile(profile_between([(without, added)]), 1e-3)
    search = loss_of_profile(subset_profile(profile_of(once), rate), 1e-3)
    total = search.compose(loss_of_profile(profile_between([(one, other)]), 1e-3))
    sampled = (1 - rate) * without + rate * added
    exact = profile_between(
        [(np.outer(without, one).ravel(), np.outer(sampled, other).ravel()),
         (np.outer(without, other).ravel(), np.outer(sampled, one).ravel())]
    )  # fmt: skip
    assert np.all(exact(EPSILONS) <= profile_of(total)(EPSILONS) + 1e-9)


def test_a_profile_of_one_direction_would_claim_too_little():
    without, added = np.array([0.999, 0.001]), np.array([0.9, 0.1])

    def removed(epsilons):
        return np.array([divergence(without, added, e) for e in epsilons])

    rate, at = 0.1, np.array([0.5])
    spent = divergence((1 - rate) * without + rate * added, without, 0.5)
    assert subset_profile(removed, rate)(at)[0] < spent
    both = subset_profile(profile_between([(without, added)]), rate)
    assert both(at)[0] == pytest.approx(spent, rel=1e-12)


@pytest.mark.parametrize("less", [0.999, 1e-3])
def test_a_smaller_delta_would_claim_too_little(less):
    """The bound is reached: by the direction with the record, at every epsilon."""
    without, added, rate = np.array([0.9, 0.1]), np.array([0.2, 0.8]), 0.1
    once = profile_between([(without, added)])
    for epsilon in (0.0, 0.1, 0.3):
        bound = subset_profile(once, rate)(np.array([epsilon]))[0]
        spent = divergence((1 - rate) * without + rate * added, without, epsilon)
        assert spent == pytest.approx(bound, rel=1e-12)
        lower = subset_profile(lambda e: less * once(e), rate)(np.array([epsilon]))[0]
        assert lower < spent


def test_epsilons_far_out_do_not_overflow():
    profile = subset_profile(lambda e: np.exp(-e), 0.1)
    epsilons = np.array([29.999999, 30.000001, 700.0, 5000.0])
    far = profile(epsilons)
    assert np.all(np.isfinite(far))
    np.testing.assert_allclose(far[:3], 0.01 * np.exp(-epsilons[:3]), rtol=1e-9)


# --- Renyi curves -----------------------------------------------------------------------------


def test_a_curve_is_never_above_that_of_its_events():
    for events in (plan_of(Gaussian(0.3)), plan_of(Laplace(0.5)), plan_of(Gaussian(50.0))):
        for rate in (0.001, 0.3, 0.99):
            curve = PoissonSubset(rate, events).renyi(rdp.orders_at(5))
            assert np.all(curve <= plan_curve(multiset(events), rdp.orders_at(5)))
    beyond = np.array([40_000.0])  # of no known order
    assert PoissonSubset(0.1, plan_of(Gaussian(5.0))).renyi(beyond) == Gaussian(5.0).renyi(beyond)


def test_orders_without_a_finite_cost_are_left_out():
    once = np.where(WHOLE_ORDERS < 10, 0.1, np.inf)
    curve = subset_rdp(once[np.isfinite(once)], 0.1)
    assert np.array_equal(curve, subset_rdp(np.full(8, 0.1), 0.1))
    assert len(subset_rdp(np.empty(0), 0.1)) == 0


# --- Files ------------------------------------------------------------------------------------


def test_a_file_tells_all_mistakes_at_once():
    inner = [{"event": "gaussian", "noise_multiplier": 5.0}]
    elsewhere = [{**inner[0], "part": "validation"}]
    segments = [
        {"event": "poisson_subset", "rate": 0.1, "of": inner, "part": "validation", "count": 2},
        {"event": "poisson_subset", "rate": 0, "of": []},
        {"event": "poisson_subset", "rate": 1.5, "of": elsewhere},
        {"event": "poisson_subset", "rates": 0.1, "of": [{"event": "gaussian"}]},
        {"event": "poisson_subset", "rate": "x", "of": 3},
    ]
    assert Plan.from_json(segments[:1]).part("validation").to_json() == [
        {**segments[0], "of": [{**inner[0], "count": 1}]}
    ]
    with pytest.raises(BadInputError) as caught:
        Plan.from_json(segments)
    expected = [
        "segment 1: rate must be in (0, 1], got 0",
        "segment 1: of must have at least one event",
        "segment 2: rate must be in (0, 1], got 1.5",
        "segment 2: the events inside poisson_subset have no part of their own",
        "segment 3: poisson_subset has no key 'rates', did you mean 'rate'?",
        "segment 3: poisson_subset needs rate",
        "segment 3: of: segment 0: gaussian needs noise_multiplier",
        "segment 4: rate must be a number",
        "segment 4: of: must be a list of segments, got 3",
    ]
    lines = str(caught.value).splitlines()
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected):
        assert line.startswith(start)


def test_what_is_kept_secret_is_said_of_events_inside_as_well():
    run = {"event": "poisson_gaussian", "noise_multiplier": 2, "sample_rate": 0.04, "steps": 45}
    best = {"event": "repeat_and_select", "mean": 10, "shape": 1, "of": [run]}
    subset = {"event": "poisson_subset", "rate": 0.1, "of": [best]}
    answer = account_epsilon(json.loads(json.dumps([subset, run])), delta=DELTA)
    assert answer["sampling"] == "poisson"
    assert "of each poisson_subset its outputs but not which records" in answer["released"]
    assert "of each repeat_and_select its best run only" in answer["released"]


def test_sampling_and_shares():
    events = plan_of(Gaussian(5.0))
    assert PoissonSubset(0.1, events).sampling == "poisson"
    assert PoissonSubset(1, events).sampling == "full_batch"
    assert PoissonSubset(0.1, events).at_share(0.3) == PoissonSubset(0.3, events)
    with pytest.raises(BadInputError, match="of must be a Plan, got list"):
        PoissonSubset(0.1, [Gaussian(5.0)])

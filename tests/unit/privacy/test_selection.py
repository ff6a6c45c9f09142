"""The price of a selection: the published table, the theorem on a mechanism that is known, and K."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting import rdp as reference
from scipy import special, stats

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import by_part, epsilon_of
from dpsweep.privacy.calculator import account_epsilon
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian, to_dp_event
from dpsweep.privacy.events.multiset import plan_curve
from dpsweep.privacy.events.repeat_and_select import selection_gamma
from dpsweep.privacy.orders import FILLED_ORDERS
from dpsweep.privacy.selection.curves import (
    envelope,
    is_under,
    orders_of,
    selection_epsilon,
)
from dpsweep.privacy.selection.number import Selection

DELTA = 1e-5
BASE = Plan((EventRun(PoissonGaussian(1.51313, 0.01), 1000),))
SHAPES = (0, 0.5, 1, 2, "poisson")
# E[K]: epsilon for each shape, and of a fixed K composed (base epsilon 1, delta 1e-5).
TABLE = {
    2: (1.392, 1.476, 1.544, 1.654, 1.267, 1.434),
    10: (1.758, 1.944, 2.109, 2.399, 2.254, 3.417),
    30: (1.941, 2.177, 2.399, 2.809, 4.317, 6.364),
    100: (2.116, 2.402, 2.680, 3.212, 7.934, 13.064),
}
CELLS = [(mean, shape, value) for mean, row in TABLE.items() for shape, value in zip(SHAPES, row)]


@pytest.mark.parametrize(("mean", "shape", "expected"), CELLS)
def test_the_published_table_comes_out_of_the_tool(mean, shape, expected):
    ours = selection_epsilon(envelope([BASE]), Selection(mean, shape), delta=DELTA)
    assert f"{ours:.3f}" == f"{expected:.3f}"
    segment = {"event": "repeat_and_select", "mean": mean, "shape": shape, "of": BASE.to_json()}
    answer = account_epsilon(json.loads(json.dumps([segment])), delta=DELTA)
    assert f"{answer['epsilon']:.3f}" == f"{expected:.3f}"
    event = dp_event.RepeatAndSelectDpEvent(
        to_dp_event(BASE), mean, math.inf if shape == "poisson" else shape
    )
    theirs = reference.RdpAccountant().compose(event).get_epsilon(DELTA)
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize(("number", "expected"), [(k, row[-1]) for k, row in TABLE.items()])
def test_a_fixed_number_of_trials_is_composed(number, expected):
    plan = Plan((EventRun(PoissonGaussian(1.51313, 0.01), 1000 * number),))
    # The table is dp_accounting's, whose fractional orders lie a little above the formula.
    assert epsilon_of(plan, delta=DELTA) == pytest.approx(expected, abs=1e-3)


# --- Best of K of randomised response, exactly ----------------------------------------------


def generating_function(mean, eta, x):
    gamma = selection_gamma(mean, eta)
    if eta == 0:
        return math.log1p(-(1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -eta - 1) / (gamma**-eta - 1)


@pytest.mark.parametrize(("eta", "exact"), [(0, 1.432), (0.5, 1.692), (1, 1.977), (2, 2.608)])
def test_best_of_k_randomised_responses_costs_less_than_the_bound(eta, exact):
    """An output is 1 with probability p or 1 - p; the best of K is 0 if all K outputs are 0."""
    p = math.e / (1 + math.e)
    zeros = [generating_function(100, eta, chance) for chance in (p, 1 - p)]
    costs = [abs(math.log(a / b)) for a, b in (zeros, [1 - zero for zero in zeros])]
    assert max(costs) == pytest.approx(exact, abs=5e-4)
    assert max(costs) < 2 + eta
    # The same from the probabilities that K is drawn with.
    selection = Selection(100, eta)
    chances = np.array([selection.probability(k) for k in range(1, 200)])
    head = float(np.sum(chances * 0.5 ** np.arange(1, 200)))
    assert head == pytest.approx(generating_function(100, eta, 0.5), rel=1e-12)
    # Randomised response has the Renyi curve of (1, 0)-DP at most: the bound of the tool holds too.
    orders = rdp.ORDERS
    curve = (
        np.logaddexp(orders * math.log(p) + (1 - orders) * math.log(1 - p),
                     orders * math.log(1 - p) + (1 - orders) * math.log(p))
        / (orders - 1)
    )  # fmt: skip
    assert selection_epsilon(curve, Selection(100, eta), delta=1e-12) > max(costs)


# --- K --------------------------------------------------------------------------------------


def test_how_often_there_is_one_trial_only():
    for shape, expected in zip(SHAPES, (0.269, 0.156, 0.100, 0.050)):
        assert Selection(10, shape).probability(1) == pytest.approx(expected, abs=5e-4)
    assert Selection(10, "poisson").probability(0) == pytest.approx(4.5e-5, abs=5e-7)
    assert Selection(10, 1).probability(0) == 0


@pytest.mark.parametrize("shape", [0, 1e-6, 0.5, 1, 2, 50, "poisson"])
@pytest.mark.parametrize("mean", [1, 1.5, 10, 100])
def test_probabilities_are_the_formula_and_add_up(mean, shape):
    selection = Selection(mean, shape)
    last = 4000
    known = np.array([selection.probability(k) for k in range(0, 60)])
    if shape == "poisson":
        expected = stats.poisson.pmf(np.arange(60), mean)
    elif mean == 1:
        expected = np.eye(60)[1]
    else:
        gamma, k = selection_gamma(mean, shape), np.arange(1, 60)
        log_factor = math.log(-math.log(gamma)) if shape == 0 else math.log(gamma**-shape - 1)
        rising = -np.log(k) if shape == 0 else special.gammaln(k + shape) - special.gammaln(k + 1)
        rising = rising if shape == 0 else rising - special.gammaln(shape)
        expected = np.concatenate([[0], np.exp(k * math.log1p(-gamma) + rising - log_factor)])
    np.testing.assert_allclose(known, expected, rtol=1e-8, atol=1e-300)
    chances = np.concatenate([chunk for _, chunk in zip(range(3), chunks_of(selection))])[:last]
    counts = np.arange(last) + (0 if shape == "poisson" else 1)
    assert chances.sum() == pytest.approx(1, abs=1e-3)
    assert (counts * chances).sum() == pytest.approx(mean, rel=0.03)


def chunks_of(selection):
    return (chunk for _, chunk in selection._chunks())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_draws_follow_the_distribution_and_not_its_neighbors(shape):
    selection, generator = Selection(10, shape), np.random.default_rng(7)
    draws = np.array([selection.draw(generator) for _ in range(8000)])
    assert draws.mean() == pytest.approx(10, abs=5 * draws.std() / math.sqrt(len(draws)))
    assert draws.min() >= (0 if shape == "poisson" else 1)

    def p_value(other):
        chances = [other.probability(k) for k in range(41)]
        keep = np.array([k for k in range(41) if 8000 * chances[k] >= 5])
        seen = np.array([(draws == k).sum() for k in keep])
        rest = 1 - sum(chances[k] for k in keep)
        return stats.chisquare(
            [*seen, len(draws) - seen.sum()],
            [*(8000 * np.array(chances)[keep]), 8000 * rest],
            sum_check=False,
        ).pvalue

    assert p_value(selection) > 1e-3
    for other in (s for s in SHAPES if s != shape):
        assert p_value(Selection(10, other)) < 1e-9
    assert p_value(Selection(15, shape)) < 1e-9


def test_long_tails_are_drawn_to_their_end():
    class Fixed:
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    selection = Selection(5000, 0)
    assert selection.draw(Fixed(0.0)) == 1
    median, far = selection.draw(Fixed(0.5)), selection.draw(Fixed(1 - 2**-53))
    assert median < 1000 < 100_000 < far < 10_000_000
    assert Selection(1, 3).draw(Fixed(1 - 2**-53)) == 1
    assert Selection(2000, "poisson").draw(Fixed(0.5)) == 2000
    below = sum(selection.probability(k) for k in range(1, median))
    assert below <= 0.5 <= below + selection.probability(median)


def test_bad_selections_are_refused():
    for mean, shape in ((0.5, 1), (10, -0.5), (10, "geometric"), (math.inf, 1), (10, math.nan)):
        with pytest.raises(BadInputError):
            Selection(mean, shape)


# --- The envelope ---------------------------------------------------------------------------


def test_the_envelope_is_the_worst_plan_order_by_order():
    cheap_low = Plan((EventRun(PoissonGaussian(0.7, 0.001), 1000),))
    cheap_high = Plan((EventRun(PoissonGaussian(5.0, 0.5), 30),))
    curve = envelope([cheap_low, cheap_high])
    assert is_under(cheap_low, curve)
    assert is_under(cheap_high, curve)
    for plan in (cheap_low, cheap_high):
        assert not is_under(cheap_low, envelope([cheap_high]))
        assert not is_under(cheap_high, envelope([cheap_low]))
        assert np.all(curve >= envelope([plan]))
    selection = Selection(10, 1)
    alone = [
        selection_epsilon(envelope([p]), selection, delta=DELTA) for p in (cheap_low, cheap_high)
    ]
    assert selection_epsilon(curve, selection, delta=DELTA) > max(alone)
    with pytest.raises(BadInputError, match="no plans"):
        envelope([])


@pytest.mark.parametrize("part", ["private", "validation"])
def test_a_cheaper_plan_of_very_many_multipliers_is_no_dearer_by_its_rounding(part):
    many = Plan(tuple(EventRun(Gaussian(5000.0 + k), part=part) for k in range(40)))
    (events,) = filter(None, by_part(many).values())
    exact = plan_curve(events, FILLED_ORDERS)
    rounded = envelope([many], is_filled=True)
    higher = ~np.isin(FILLED_ORDERS, rdp.ORDERS)
    assert (rounded > exact * (1 + 1e-9)).any()
    assert not (rounded > exact * (1 + 1e-8))[~higher].any()
    assert is_under(many, exact)
    for place in (np.flatnonzero(higher)[40], np.flatnonzero(~higher)[40]):
        lower = exact.copy()
        lower[place] *= 1 - 1e-6
        assert not is_under(many, lower)


def test_each_part_of_the_records_is_under_the_envelope():
    scores = Plan((EventRun(Gaussian(20.0), 10, part="validation"),))
    curve = envelope([BASE + scores])
    of_scores = envelope([scores])  # so cheap that it has more orders
    of_scores = of_scores[np.isin(orders_of(of_scores), rdp.ORDERS)]
    assert np.all(curve == np.maximum(envelope([BASE]), of_scores))
    assert is_under(BASE + scores, curve)
    assert not is_under(BASE + scores + scores + scores, envelope([BASE]))
    assert is_under(BASE.labelled("public"), np.zeros(len(curve)))
    # Training and scores are about different records: together they cost the larger of the two.
    cheap = Plan((EventRun(Gaussian(200.0), part="validation"),))
    selection = Selection(10, 1)
    assert selection_epsilon(envelope([BASE + cheap]), selection, delta=DELTA) == selection_epsilon(
        envelope([BASE]), selection, delta=DELTA
    )


def test_a_plan_without_an_epsilon_has_no_selection_epsilon():
    endless = Plan((EventRun(Gaussian(0.0)),))
    assert selection_epsilon(envelope([endless]), Selection(10, 1), delta=DELTA) == math.inf
    assert selection_epsilon(envelope([endless]), Selection(3, "poisson"), delta=DELTA) == math.inf
    assert not is_under(endless, envelope([BASE]))


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.0, "poisson"])
def test_probabilities_of_all_numbers_add_up_to_one(shape):
    selection = Selection(6, shape)
    assert math.fsum(selection.probability(k) for k in range(400)) == pytest.approx(1, abs=1e-9)
    assert selection.probability(0) == (pytest.approx(math.exp(-6)) if shape == "poisson" else 0)
    # Far beyond the first numbers, and where nothing is left.
    assert 0 <= selection.probability(1500) < 1e-30
    assert selection.probability(200_000) == 0.0


def test_a_draw_at_the_very_end_of_the_distribution_ends():
    class Last:
        def random(self):
            return 1 - 2.0**-53

    for shape in (0.0, 1.0, "poisson"):
        drawn = Selection(6, shape).draw(Last())
        assert 6 < drawn < 10_000

"""Prices of honest searches by the calculator that users have, against known ones; none too low.

``tests/golden/search_prices.json`` has the known prices and, as ``here``, the few that this project
has instead, each with its reason. Whatever the table says, no price is below what others show to be
the least: another accountant's lower end, an explicit order of the scores, exact mechanisms.
"""

from __future__ import annotations

import json
import math
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr

from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.privacy.calculator import account_epsilon, account_noise, account_steps
from dpsweep.privacy.composition.declared import DeclaredComposition, declared_classes
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.events.poisson_subset import subset_profile
from dpsweep.privacy.events.repeat_and_select import (
    selected_profile,
    selection_gamma,
    selection_shift,
)
from dpsweep.privacy.selection.number import Selection

PRICES = json.loads((Path(__file__).parents[2] / "golden" / "search_prices.json").read_text())
DELTA = 1e-5


def table(*, slow: bool = True, **wanted):
    """Return the rows that have these keys, each with the bounds of its group, as parameters."""
    rows = [
        ({**row, "within": group["within"]}, f"{row['name']}")
        for group in PRICES["epsilons"].values()
        for row in group["rows"]
        if all((key in row) is is_there for key, is_there in wanted.items())
    ]
    return [
        pytest.param(row, id=name, marks=[pytest.mark.slow] if slow and "slow" in row else [])
        for row, name in rows
    ]


def steps_of(rows):
    return [
        {"event": "poisson_gaussian", "noise_multiplier": noise, "sample_rate": rate, "steps": n}
        for noise, rate, n in rows
    ]


def events_of(row):
    events = steps_of(row.get("steps", ()))
    if "gaussian" in row:
        events = [{"event": "gaussian", "noise_multiplier": 1 / row["gaussian"]}]
    if "best_of" in row:
        mean, shape = row["best_of"]
        events = [{"event": "repeat_and_select", "mean": mean, "shape": shape, "of": events}]
    if "subset" in row:
        events = [{"event": "poisson_subset", "rate": row["subset"], "of": events}]
    return events * row.get("times", 1) + steps_of(row.get("then", ()))


def price(events, accountant="pld"):
    return account_epsilon(events, delta=DELTA, accountant=accountant)["epsilon"]


@lru_cache
def ends_of_prv(rows):
    """Return the lower and the upper end of epsilon by numerical composition (Gopi et al. 2021)."""
    from opacus.accountants.prv import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(rows)
    with warnings.catch_warnings():  # of the order by which it chooses where its grid ends
        warnings.filterwarnings("ignore", message="Optimal order is the largest")
        random_variable = accountant._get_dprv(eps_error=0.002, delta_error=1e-8)
    low, _, high = random_variable.compute_epsilon(DELTA, 1e-8, 0.002)
    return float(low), float(high)


# --- The table --------------------------------------------------------------------------------


def test_every_difference_has_a_reason_and_is_a_lower_price():
    for group in PRICES["epsilons"].values():
        for row in group["rows"]:
            for accountant, ours in row.get("here", {}).items():
                assert group["why"]
                assert ours < row[accountant]


@pytest.mark.sampled(40)
@pytest.mark.parametrize("row", table())
def test_the_calculator_says_what_is_known(row):
    for accountant in {"pld", "rdp"} & row.keys():
        ours, known = price(events_of(row), accountant), row[accountant]
        if accountant in row.get("here", {}):
            assert ours == pytest.approx(row["here"][accountant], abs=1e-4)
        else:
            assert ours == pytest.approx(known, abs=row["within"][accountant] * max(1, known))
    if {"pld", "rdp"} <= row.keys():
        assert price(events_of(row)) <= price(events_of(row), "rdp")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("row", table(run_alone=True))
def test_what_the_search_leaves_to_one_run(row):
    assert price(steps_of(row["run"])) == pytest.approx(row["run_alone"], abs=2e-3)


@pytest.mark.sampled(42)
@pytest.mark.parametrize("row", table(best_of=False, gaussian=False, pld=True))
def test_declared_events_lie_between_the_ends_of_another_accountant(row):
    for rows in (row["steps"], row.get("run", row["steps"])):
        low, high = ends_of_prv(tuple(map(tuple, rows)))
        composed = declared_classes(
            [[(Plan((EventRun(PoissonGaussian(noise, rate), n),)), 1)] for noise, rate, n in rows]
        )
        declared = DeclaredComposition.at(composed, target_epsilon=9.0, delta=DELTA).epsilon
        for ours in (price(steps_of(rows)), declared):
            assert low <= ours <= high + 0.003


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", table(prv_upper=True))
def test_the_other_accountant_is_the_known_one(row):
    assert ends_of_prv(tuple(map(tuple, row["steps"])))[1] == pytest.approx(
        row["prv_upper"], abs=2e-4
    )


def levels():
    rows = [param.values[0] for param in table(level=True)]
    return [
        pytest.param(row, id=row["name"], marks=[pytest.mark.slow] if row["pld"] > 0.3 else [])
        for row in rows
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", levels())
def test_noise_of_a_single_run(row):
    [[known, rate, steps]], epsilon = row["steps"], row["pld"]
    answer = account_noise(
        sample_rate=rate, steps=steps, epsilon=epsilon, delta=DELTA, accountant="pld"
    )
    noise = answer["noise_multiplier"]
    assert noise == pytest.approx(known, rel=1e-3)
    low, high = ends_of_prv(((noise, rate, steps),))
    assert low <= epsilon <= high + 0.003


# --- The best of a random number of runs --------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", PRICES["numbers_of_runs"])
def test_the_number_of_runs(row):
    mean, shape = row["mean"], row["shape"]
    assert selection_gamma(mean, shape) == pytest.approx(row["gamma"], abs=1e-8)
    number = Selection(mean, shape)
    chances = np.array([number.probability(k) for k in range(1, 6001)])
    assert chances[0] == pytest.approx(row["of_one"], abs=1e-8)
    assert chances.sum() == pytest.approx(1, abs=1e-9)
    assert chances @ np.arange(1, 6001) == pytest.approx(mean, abs=1e-6)
    half = chances[:60] @ 0.5 ** np.arange(1, 61)
    assert half == pytest.approx(row["generating_at_half"], abs=1e-8)


def test_gamma_of_an_enormous_shape_has_the_declared_mean():
    mean, shape = 1.001, 1e12
    gap = -math.log(selection_gamma(mean, shape))  # E[K] = 1 + (1 + eta) gap / 2, nearly
    assert 1 + (1 + shape) * gap / 2 == pytest.approx(mean, rel=1e-3)


def profile_of_gaussian(mu):
    def delta(epsilons):
        with np.errstate(over="ignore", invalid="ignore"):
            low = np.exp(epsilons) * ndtr(-epsilons / mu - mu / 2)
        return ndtr(mu / 2 - epsilons / mu) - low

    return delta


@pytest.mark.parametrize("row", table(slow=False, shift=True))
def test_the_shift_is_the_largest_ratio_over_the_trade_off_curve(row):
    """Its equation has one root; an adversary that picks the set above an output reaches it."""
    mu, (mean, shape) = row["gaussian"], row["best_of"]
    once = profile_of_gaussian(mu)
    shift = selection_shift(once, mean, shape)
    if shape == "poisson":
        assert shift == pytest.approx(row["shift"], abs=1e-9)
        assert mean * (ndtr(mu / 2) - ndtr(-mu / 2)) == pytest.approx(shift, abs=1e-12)
        return
    root, gamma = shift / (1 + shape), selection_gamma(mean, shape)
    assert root == pytest.approx(row["shift"], abs=1e-9)
    residual = once(np.array([root]))[0] - gamma / (1 - gamma) * math.expm1(root)
    assert abs(residual) < 1e-12

    def ratio(z):
        above, above_of_other = ndtr(z), ndtr(z + mu)
        return math.log((gamma + (1 - gamma) * above_of_other) / (gamma + (1 - gamma) * above))

    best = minimize_scalar(lambda z: -ratio(z), bounds=(-5, 3), options={"xatol": 1e-10})
    assert -best.fun == pytest.approx(root, abs=1e-9)


def explicit_order(mu, mean, shape):
    """Return the epsilon of the best of K Gaussians under the dearest of a family of orders.

    Outputs below t are on top; the others follow from the largest down. Then outputs that speak for
    one dataset have little above them, of which the other dataset makes more.
    """
    x = np.linspace(-8, 10, 40_001)
    density, of_other = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
    scale = (x[1] - x[0]) / math.sqrt(2 * math.pi)

    def weight(above):
        if shape == "poisson":
            return mean * np.exp(-mean * above)
        gamma = selection_gamma(mean, shape)
        return mean * (gamma / (gamma + (1 - gamma) * above)) ** (1 + shape)

    def epsilon(t):
        above = np.where(x < t, ndtr(x - mu), ndtr(t - mu) + ndtr(mu - x))
        above_of_other = np.where(x < t, ndtr(x), ndtr(t) + ndtr(-x))
        one = scale * density * weight(above)
        other = scale * of_other * weight(above_of_other)
        return brentq(lambda e: np.maximum(one - math.exp(e) * other, 0).sum() - DELTA, 0, 9)

    best = minimize_scalar(lambda t: -epsilon(t), bounds=(-3, 2), options={"xatol": 1e-2})
    return -best.fun


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", table(at_least=True))
def test_an_explicit_order_costs_nearly_as_much(row):
    order = explicit_order(row["gaussian"], *row["best_of"])
    assert row["at_least"] - 1e-6 <= order == pytest.approx(row["at_least"], abs=2e-3)
    assert order <= price(events_of(row))


@pytest.mark.parametrize("row", PRICES["randomised_responses"])
def test_the_best_of_randomised_responses(row):
    """At delta 0; the better answer is the likelier one of one dataset, or of the other."""
    once, mean, shape = row["once"], row["mean"], row["shape"]
    keep = math.exp(once) / (1 + math.exp(once))

    def profile(epsilons):
        return np.maximum(keep - np.exp(epsilons) * (1 - keep), 0)

    def of_worse(chance):
        """Return how likely all of K answers are the worse one."""
        gamma = selection_gamma(mean, shape)
        if shape == 0:
            return math.log1p(-(1 - gamma) * chance) / math.log(gamma)
        return ((1 - (1 - gamma) * chance) ** -shape - 1) / (gamma**-shape - 1)

    low, high = of_worse(1 - keep), of_worse(keep)
    exact = max(math.log(high / low), math.log((1 - low) / (1 - high)))
    bound = once + selection_shift(profile, mean, shape)
    assert exact == pytest.approx(row["exact"], abs=1e-8)
    assert bound == pytest.approx(row["bound"], abs=1e-8)
    assert exact <= bound < (2 + shape) * once == row["pure_sum"]
    just = np.array([bound * (1 + 1e-9)])
    assert selected_profile(profile, mean, shape)(just)[0] <= 1e-12


def test_no_random_finite_mechanism_passes_the_bound():
    """More than eight thousand, exactly, by the generating function of K."""
    rng, epsilons, checks = np.random.default_rng(7), np.array([0.0, 0.3, 1.0, 2.5]), 0
    for _ in range(360):
        pair = rng.dirichlet(np.full(rng.integers(2, 8), 0.7), size=2)
        both = (pair, pair[::-1])

        def once(at, both=both):
            return np.array([max(divergence(*p, e) for p in both) for e in at])

        for mean, shape in ((1.3, 2.0), (5, 0.5), (10, 1.0), (60, 3.0), (12, "poisson"), (10, 0)):
            bounds = selected_profile(once, mean, shape)(epsilons)
            best = [best_of(chances, mean, shape) for chances in pair]
            for epsilon, bound in zip(epsilons, bounds):
                assert divergence(best[0], best[1], epsilon) <= bound + 1e-12
                checks += 1
    assert checks > 8361


def divergence(one, other, epsilon):
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def best_of(chances, mean, shape):
    """Return how likely each output is the best of K runs; later ones are better."""
    below = np.minimum(np.concatenate([[0.0], np.cumsum(chances)]), 1.0)
    if shape == "poisson":
        return np.diff(np.exp(mean * (below - 1)))
    gamma = selection_gamma(mean, shape)
    if shape == 0:
        return np.diff(np.log1p(-(1 - gamma) * below) / math.log(gamma))
    return np.diff(((1 - (1 - gamma) * below) ** -shape - 1) / (gamma**-shape - 1))


# --- Parts, full batches, halving ---------------------------------------------------------------


@pytest.mark.parametrize("row", PRICES["one_gaussian_on_a_subset"])
def test_a_gaussian_on_a_subset(row):
    once, at = profile_of_gaussian(1 / row["noise"]), np.array([row["epsilon"]])
    assert subset_profile(once, row["rate"])(at)[0] == pytest.approx(row["delta"], rel=1e-8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", table(subset=True))
def test_a_search_on_a_subset_costs_something(row):
    """More than the final run alone, less than the whole search beside it."""
    alone, whole = steps_of(row["then"]), {k: v for k, v in row.items() if k != "subset"}
    assert price(alone) < price(events_of(row)) < price(events_of(whole))


@pytest.mark.parametrize("row", PRICES["full_batch"])
def test_full_batches_within_a_budget(row):
    """The Gaussian filter admits what one accountant of Gaussians does, the Renyi one less."""
    epsilon, noise = row["epsilon"], row["noise"]
    gaussian = GaussianFilter.at(target_epsilon=epsilon, delta=DELTA)
    assert math.sqrt(gaussian.budget) == pytest.approx(row["mu"], abs=1e-6)
    step = Plan((EventRun(Gaussian(noise)),))
    most = Plan((EventRun(Gaussian(noise), row["gaussian"]),))
    assert gaussian.share(gaussian.cost(most)) <= 1
    assert gaussian.share(gaussian.cost(most + step)) > 1
    terms = {"sample_rate": 1, "noise_multiplier": noise, "epsilon": epsilon, "delta": DELTA}
    assert account_steps(**terms, accountant="pld")["steps"] == row["gaussian"]
    assert account_steps(**terms)["steps"] == row["renyi"]
    renyi = RenyiFilter.choose([most], target_epsilon=epsilon, delta=DELTA)
    fits = [n for n in range(1, 300) if renyi.share(renyi.cost(_times(noise, n))) <= 1]
    assert max(fits) == row["renyi"]


def _times(noise, count):
    return Plan((EventRun(Gaussian(noise), count),))


@pytest.mark.parametrize("row", PRICES["halving"], ids=lambda row: f"{row['runs']}, {row['share']}")
def test_what_losers_leave_to_the_winner(row):
    """Of so many Gaussian runs, each loser costs so small a share of the winner."""
    kept = 1 / (1 + (row["runs"] - 1) * row["share"])
    assert kept == pytest.approx(row["kept"], abs=1e-8)
    for epsilon, left in ((1.0, row["of_1"]), (3.0, row["of_3"])):
        whole = GaussianFilter.at(target_epsilon=epsilon, delta=DELTA)
        ours = whole.spent_epsilon({"private": kept * whole.budget, "validation": 0.0})
        assert ours == pytest.approx(left, abs=1e-6)
        assert ours >= analytic_gaussian_epsilon(math.sqrt(kept * whole.budget), DELTA)

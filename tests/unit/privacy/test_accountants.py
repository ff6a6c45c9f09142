"""Properties of epsilon_of: limits, monotonicity, order, composition, and the statement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import accountants, rdp
from dpsweep.privacy.accountants import analytic_gaussian_epsilon, epsilon_of, make_accountant
from dpsweep.privacy.events import (
    EventRun,
    Gaussian,
    Laplace,
    NonPrivate,
    Plan,
    PoissonGaussian,
    RepeatAndSelect,
    losses,
    poisson_gaussian,
)
from dpsweep.privacy.events.multiset import multiset
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.privacy.statement import PrivacyStatement

DELTA = 1e-5
BOTH = ["rdp", "pld"]
sigmas = st.floats(0.3, 50)
rates = st.floats(1e-4, 1)
few_steps = st.integers(1, 3000)


def plan_of(*runs: tuple) -> Plan:
    return Plan(tuple(EventRun(event, count) for event, count in runs))


def dp_sgd(sigma: float, rate: float, steps: int) -> Plan:
    return plan_of((PoissonGaussian(sigma, rate), steps))


@pytest.mark.parametrize("accountant", BOTH)
def test_limits(accountant: str) -> None:
    def epsilon(plan: Plan) -> float:
        return epsilon_of(plan, delta=DELTA, accountant=accountant)

    assert epsilon(Plan()) == 0.0
    assert epsilon(dp_sgd(1.0, 0.0, 100)) == 0.0
    assert epsilon(dp_sgd(0.0, 0.1, 1)) == math.inf
    assert epsilon(plan_of((Gaussian(0.0), 1))) == math.inf
    assert epsilon(plan_of((Laplace(0.0), 1))) == math.inf
    assert epsilon(plan_of((Gaussian(5.0), 1), (NonPrivate(), 1))) == math.inf
    assert epsilon(dp_sgd(2.0, 1.0, 3)) == epsilon(plan_of((Gaussian(2.0), 3)))
    assert epsilon(plan_of((Laplace(2.0), 1))) == pytest.approx(0.5, rel=1e-4)


@settings(deadline=None)
@given(sigmas, rates, few_steps, st.floats(1.001, 3))
def test_rdp_is_monotone(sigma: float, rate: float, steps: int, factor: float) -> None:
    def epsilon(s: float, q: float, n: int, delta: float = DELTA) -> float:
        return epsilon_of(dp_sgd(s, q, n), delta=delta)

    base, slack = epsilon(sigma, rate, steps), 1 + 1e-8
    assert epsilon(sigma, rate, math.ceil(steps * factor)) >= base / slack
    assert epsilon(sigma, min(1.0, rate * factor), steps) >= base / slack
    assert epsilon(sigma * factor, rate, steps) <= base * slack
    assert epsilon(sigma, rate, steps, DELTA * factor) <= base * slack


@settings(max_examples=15, deadline=None)
@given(st.floats(0.6, 10), st.floats(1e-3, 0.3), st.integers(1, 500))
def test_pld_is_monotone_in_steps_and_never_above_rdp(
    sigma: float, rate: float, steps: int
) -> None:
    once = epsilon_of(dp_sgd(sigma, rate, steps), delta=DELTA, accountant="pld")
    twice = epsilon_of(dp_sgd(sigma, rate, 2 * steps), delta=DELTA, accountant="pld")
    assert once <= twice * (1 + 1e-6)
    assert once <= epsilon_of(dp_sgd(sigma, rate, steps), delta=DELTA)


@given(st.permutations(range(12)), st.integers(1, 11))
def test_order_and_cuts_of_a_fixed_plan_cost_nothing(order: list[int], cut: int) -> None:
    noise = np.linspace(0.8, 2.0, 12)
    runs = [EventRun(PoissonGaussian(noise[i], 0.01), 3) for i in order]
    plan = Plan((*runs, EventRun(Gaussian(30.0))))
    straight = Plan(
        (
            EventRun(Gaussian(30.0)),
            *(EventRun(PoissonGaussian(s, 0.01), 3) for s in noise),
        )
    )
    expected = epsilon_of(straight, delta=DELTA)
    assert epsilon_of(plan, delta=DELTA) == expected
    again = plan.slice(0, 3 * cut) + plan.slice(3 * cut, len(plan))
    assert epsilon_of(again, delta=DELTA) == expected


def test_composing_n_times_equals_one_event_counted_n_times() -> None:
    singles = Plan(tuple(EventRun(PoissonGaussian(1.0, 0.02)) for _ in range(450)))
    split = dp_sgd(1.0, 0.02, 50) + dp_sgd(1.0, 0.02, 400)
    whole = epsilon_of(dp_sgd(1.0, 0.02, 450), delta=DELTA)
    assert epsilon_of(singles, delta=DELTA) == whole == epsilon_of(split, delta=DELTA)


def test_asking_twice_changes_nothing() -> None:
    plan = dp_sgd(1.234, 0.0123, 77)
    first = epsilon_of(plan, delta=DELTA)
    accountants.epsilon_and_order.cache_clear()
    assert epsilon_of(plan, delta=DELTA) == first


def test_rdp_cache_survives_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisson_gaussian, "_CACHED_CURVES", 10)
    plan = NoiseSchedule("linear", 0.5).plan(2.0, 0.03, 25)
    accountants.epsilon_and_order.cache_clear()
    first = epsilon_of(plan, delta=DELTA)
    accountants.epsilon_and_order.cache_clear()
    assert epsilon_of(plan, delta=DELTA) == first


@pytest.mark.parametrize("accountant", BOTH)
def test_disjoint_parts_cost_the_larger_and_public_records_nothing(accountant: str) -> None:
    def epsilon(plan: Plan) -> float:
        return epsilon_of(plan, delta=DELTA, accountant=accountant)

    training, scores = dp_sgd(1.0, 0.01, 300), plan_of((Gaussian(50.0), 100))
    cheap, dear = sorted([epsilon(training), epsilon(scores)])
    assert cheap < dear < epsilon(training + scores)
    parts = training + scores.labelled("validation")
    assert epsilon(parts) == dear
    assert epsilon(parts + parts.labelled("public")) == dear
    assert epsilon(scores.labelled("validation") + training) == dear
    assert epsilon((training + scores).labelled("public")) == 0
    endless = plan_of((NonPrivate(), 1))
    assert epsilon(parts + endless.labelled("public")) == dear
    assert epsilon(parts + endless.labelled("validation")) == math.inf


def test_a_selection_by_scores_costs_the_larger_of_its_two_selections() -> None:
    training, scores = dp_sgd(1.0, 0.01, 300), plan_of((Gaussian(50.0), 1))
    best = [
        EventRun(RepeatAndSelect(10, 1, training)),
        EventRun(RepeatAndSelect(10, 1, scores), part="validation"),
    ]
    alone = [epsilon_of(Plan((run,)), delta=DELTA) for run in best]
    assert epsilon_of(Plan(tuple(best)), delta=DELTA) == max(alone) == alone[0]


def test_high_orders_are_used_where_the_grid_ends_too_early() -> None:
    # zCDP: epsilon of rho = 2e-9 needs orders in the tens of thousands.
    plan = plan_of((Gaussian(16000.0), 1))
    assert epsilon_of(plan, delta=1e-9) <= 0.5 * min(
        order / (2 * 16000**2) + math.log1p(-1 / order) - math.log(1e-9 * order) / (order - 1)
        for order in rdp.ORDERS.tolist()
    )


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(15.0, 0.1, 10), (5.0, 0.01, 50), (3.0, 0.01, 300), (20.0, 0.05, 100), (40.0, 0.1, 10)],
)
def test_where_little_is_spent_the_best_whole_order_is_met(noise, rate, steps, delta) -> None:
    orders = np.arange(2.0, 1025.0)
    curve = steps * rdp.poisson_gaussian_rdp(np.array([noise]), rate, orders)
    best = float(rdp.epsilons(curve, orders, delta)[0][0])
    epsilon = epsilon_of(plan_of((PoissonGaussian(noise, rate), steps)), delta=delta)
    assert best * (1 - 1e-9) <= epsilon <= best * 1.01


def test_schedules_with_many_levels_are_rounded_to_the_private_side() -> None:
    few = NoiseSchedule("linear", 0.6).plan(2.0, 0.02, 100)
    many = NoiseSchedule("linear", 0.6).plan(2.0, 0.02, 400)
    exact = losses.rounded_down(multiset(few))
    assert exact == multiset(few)
    rounded = losses.rounded_down(multiset(many))
    assert len(rounded) <= poisson_gaussian.MAX_LEVELS
    assert sum(count for _, count in rounded) == 400
    before = sorted(e.noise_multiplier for e, n in multiset(many) for _ in range(n))
    after = sorted(e.noise_multiplier for e, n in rounded for _ in range(n))
    assert all(0.98 * b <= a <= b for a, b in zip(after, before))
    # A part of the plan is never rounded further down than the whole.
    part = losses.rounded_down(multiset(many.slice(0, 200)))
    finest = {e.noise_multiplier: n for e, n in part}
    assert sum(finest.values()) == 200
    assert sorted(finest)[0] >= min(
        e.noise_multiplier for e, _ in rounded if e.noise_multiplier >= 0.98 * sorted(finest)[0]
    )


def test_pld_is_tighter_for_a_selection_than_its_renyi_curve() -> None:
    plan = plan_of((RepeatAndSelect(10, 1, dp_sgd(1.5, 0.01, 10)), 1))
    assert 0 < epsilon_of(plan, delta=DELTA, accountant="pld") < epsilon_of(plan, delta=DELTA)


def test_fixed_k_of_selection_is_dominated_by_its_bound() -> None:
    # Best of K of randomized response, K ~ TNB(eta), costs this much exactly (case iii).
    for eta, exact in [(0.0, 1.432), (0.5, 1.692), (1.0, 1.977), (2.0, 2.608)]:
        base = plan_of((Laplace(1.0), 1))  # 1-DP, as the randomized response
        bound = epsilon_of(plan_of((RepeatAndSelect(100, eta, base), 1)), delta=1e-12)
        assert bound >= exact


@pytest.mark.parametrize("delta", [0, 1, -1, float("nan"), True, "x"])
def test_delta_is_checked(delta: object) -> None:
    with pytest.raises(BadInputError, match="delta must be"):
        epsilon_of(Plan(), delta=delta)


def test_unknown_accountants_are_refused() -> None:
    with pytest.raises(BadInputError, match="accountant must be one of rdp, pld; got 'gdp'"):
        make_accountant("gdp")
    assert [make_accountant(name).name for name in BOTH] == BOTH


@given(st.floats(1e-3, 30), st.floats(1e-12, 0.3))
def test_the_analytic_gaussian_solves_its_equation_from_above(mu: float, delta: float) -> None:
    epsilon = analytic_gaussian_epsilon(mu, delta)

    def delta_of(eps: float) -> float:
        return float(
            stats.norm.cdf(mu / 2 - eps / mu)
            - math.exp(eps + stats.norm.logcdf(-mu / 2 - eps / mu))
        )

    assert delta_of(epsilon) <= delta * (1 + 1e-5) + 1e-15
    if epsilon > 1e-6:
        assert delta_of(epsilon * (1 - 1e-4)) >= delta * (1 - 1e-5) - 1e-15


@pytest.mark.parametrize(
    ("mu", "delta", "exact"),  # to 60 digits, by mpmath
    [
        (4e-5, 1e-6, 6.275706196212564953e-05),
        (1e-7, 1e-9, 1.938356344155162998e-07),
        (1e-9, 1e-13, 3.363015326363293691e-09),
    ],
)
def test_the_analytic_gaussian_of_much_noise_is_not_below_the_exact_one(
    mu: float, delta: float, exact: float
) -> None:
    assert exact <= analytic_gaussian_epsilon(mu, delta) <= exact * (1 + 1e-5)


@pytest.mark.parametrize("mu", [1e-12, 1e-9, 1e-5])
def test_the_analytic_gaussian_at_a_delta_without_digits_is_an_upper_bound(mu: float) -> None:
    """Both terms together: the first one alone is at most delta."""
    delta = 1e-200
    epsilon = analytic_gaussian_epsilon(mu, delta)
    assert stats.norm.logcdf(mu / 2 - epsilon / mu) <= math.log(delta)
    assert epsilon <= 1.02 * mu * math.sqrt(-2 * math.log(delta)) + mu * mu + 1e-12


def test_the_analytic_gaussian_far_out() -> None:
    assert analytic_gaussian_epsilon(0.0, DELTA) == 0.0
    assert analytic_gaussian_epsilon(1e-9, DELTA) == 0.0
    large = analytic_gaussian_epsilon(1e3, DELTA)
    assert large == pytest.approx(1e6 / 2 + 1e3 * stats.norm.isf(DELTA), rel=1e-4)
    assert analytic_gaussian_epsilon(1.0, 1e-300) > 36
    assert analytic_gaussian_epsilon(1e-17, 1e-300) > 3.59e-16
    assert analytic_gaussian_epsilon(1e-16, 1e-20) > 3.4e-16
    assert analytic_gaussian_epsilon(1e-16, 1e-5) == 0


STATEMENT = {
    "epsilon": 1.83401,
    "delta": DELTA,
    "accountant": "rdp",
    "neighboring_relation": "add_or_remove_one",
    "sampling": "poisson",
    "privacy_unit": "example",
    "accounting": "single_run",
    "released": "the model",
}


@pytest.mark.parametrize("name", sorted(STATEMENT))
def test_a_statement_without_a_field_is_not_made(name: str) -> None:
    with pytest.raises(BadInputError):
        PrivacyStatement(**{**STATEMENT, name: None})
    with pytest.raises(TypeError):
        PrivacyStatement(**{key: value for key, value in STATEMENT.items() if key != name})


def test_a_statement_shows_everything_and_rounds_up() -> None:
    line = PrivacyStatement(**STATEMENT).one_line()
    assert line.startswith("epsilon=1.8341 at delta=1e-05 (rdp, add_or_remove_one, poisson")
    for word in ("example", "single_run", "the model"):
        assert word in line
    assert "epsilon=2.0000 " in PrivacyStatement(**{**STATEMENT, "epsilon": 2.0}).one_line()
    infinite = PrivacyStatement(**{**STATEMENT, "epsilon": math.inf})
    assert infinite.to_json()["epsilon"] == "inf"
    assert "no privacy guarantee" in infinite.one_line()
    assert PrivacyStatement(**STATEMENT).to_json() == STATEMENT


def test_the_cache_of_high_orders_survives_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of((PoissonGaussian(10.0, 1e-3), 50), (PoissonGaussian(11.0, 1e-3), 50))
    first = epsilon_of(plan, delta=DELTA)
    monkeypatch.setattr(poisson_gaussian, "_CACHED_CURVES", 1)
    accountants.epsilon_and_order.cache_clear()
    assert epsilon_of(plan, delta=DELTA) == first
    assert not poisson_gaussian._high_curves


def test_a_bracket_of_the_analytic_gaussian_that_is_too_low_is_moved_up() -> None:
    # delta close to 1: half of the mass is above any guess of its tail.
    for mu in (0.1, 5.0, 40.0):
        for delta in (0.2, 1e-300):
            epsilon = analytic_gaussian_epsilon(mu, delta)
            top = stats.norm.logcdf(mu / 2 - epsilon / mu) if epsilon else 0
            assert top >= math.log(delta) or epsilon == 0

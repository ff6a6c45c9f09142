"""What near_private asks fits into what the start leaves, under both rules."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting import rdp as rdp_accounting

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.trainables.methods.active_learning.private_query import (
    fixed_query,
    query_events,
    split_query,
    sum_rule_epsilon,
)

DELTA = 1e-5
START = Plan((EventRun(PoissonGaussian(1.1, 0.02), 400),))
BUDGET = PrivacyBudget(target_epsilon=4.0, delta=DELTA)


def events(rule: str, share: float = 0.5) -> tuple[Gaussian, Laplace]:
    pca, votes = split_query(START, share, rule, BUDGET, "rdp").runs
    assert isinstance(pca.event, Gaussian)
    assert isinstance(votes.event, Laplace)
    return pca.event, votes.event


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_tight_rule_uses_the_budget_up(accountant: str) -> None:
    query = split_query(START, 0.3, "tight", BUDGET, accountant)  # type: ignore[arg-type]
    epsilon = epsilon_of(START + query, delta=DELTA, accountant=accountant)  # type: ignore[arg-type]
    assert 4.0 * (1 - 1e-5) < epsilon <= 4.0


def test_the_sum_rule_is_the_papers_sum() -> None:
    query = split_query(START, 0.3, "sum", BUDGET, "rdp")
    assert sum_rule_epsilon(START, query, delta=DELTA, accountant="rdp") == pytest.approx(4.0)
    assert epsilon_of(START + query, delta=DELTA) < 4.0


def test_composing_leaves_more_than_adding_up() -> None:
    (tight_pca, tight_votes), (sum_pca, sum_votes) = events("tight"), events("sum")
    assert tight_pca.noise_multiplier < sum_pca.noise_multiplier
    assert tight_votes.scale < sum_votes.scale


def test_a_larger_share_means_less_noise() -> None:
    low, high = events("tight", 0.2), events("tight", 0.8)
    assert low[0].noise_multiplier > high[0].noise_multiplier
    assert low[1].scale < high[1].scale


def test_the_two_releases_have_the_epsilons_they_are_named_for() -> None:
    pca, votes = query_events(0.5, 0.25, BUDGET).runs
    exact = epsilon_of(Plan((pca,)), delta=DELTA / 2, accountant="pld")
    assert exact == pytest.approx(0.5, rel=1e-6)
    assert exact <= 0.5
    assert votes.event == Laplace(4.0)


def test_events_match_a_composition_written_by_hand() -> None:
    """Acceptance: to 1e-6 by another library, for what a near_private trial has on its ledger."""
    pca, votes = events("tight")
    accountant = rdp_accounting.RdpAccountant(rdp.ORDERS.tolist())
    sampled = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.1))
    accountant.compose(sampled, 400)
    accountant.compose(dp_accounting.GaussianDpEvent(pca.noise_multiplier))
    accountant.compose(dp_accounting.LaplaceDpEvent(votes.scale))
    plan = START + split_query(START, 0.5, "tight", BUDGET, "rdp")
    assert epsilon_of(plan, delta=DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


@pytest.mark.parametrize("rule", ["tight", "sum"])
def test_a_start_that_leaves_nothing_is_refused(rule: str) -> None:
    spent = epsilon_of(START, delta=DELTA)
    with pytest.raises(InfeasibleBudgetError, match=r"leaves less than .* for near_private"):
        split_query(START, 0.5, rule, PrivacyBudget(spent, DELTA), "rdp")


def test_little_is_asked_with_where_little_is_left() -> None:
    """A hundredth of the budget is enough; what is refused says by which rule and at which delta."""
    budget = PrivacyBudget(1.01 * epsilon_of(START, delta=DELTA), DELTA)
    plan = START + split_query(START, 0.5, "tight", budget, "rdp")
    assert 0.9999 < epsilon_of(plan, delta=DELTA) / budget.target_epsilon <= 1
    spent = shown_epsilon(epsilon_of(START, delta=DELTA / 2))
    with pytest.raises(InfeasibleBudgetError, match=f"split.rule=sum it costs epsilon={spent} of"):
        split_query(START, 0.5, "sum", budget, "rdp")


@pytest.mark.parametrize("rule", ["tight", "sum"])
def test_a_fixed_extra_is_asked_at_whatever_the_start_has_cost(rule: str) -> None:
    roomy = PrivacyBudget(target_epsilon=10.0, delta=DELTA)
    query = fixed_query(START, 0.75, 2 / 3, rule, roomy, "rdp")
    assert query == query_events(0.5, 0.25, roomy)
    assert query == fixed_query(Plan(START.runs * 2), 0.75, 2 / 3, rule, roomy, "rdp")


@pytest.mark.parametrize("rule", ["tight", "sum"])
def test_a_fixed_extra_is_never_over_the_budget(rule: str) -> None:
    """The largest that is allowed is what ``split_query`` finds; a little more is refused."""
    _, votes = split_query(START, 0.5, rule, BUDGET, "rdp").runs
    assert isinstance(votes.event, Laplace)
    most = 2 / votes.event.scale
    query = fixed_query(START, 0.999 * most, 0.5, rule, BUDGET, "rdp")
    assert epsilon_of(START + query, delta=DELTA) <= 4.0
    if rule == "sum":
        assert sum_rule_epsilon(START, query, delta=DELTA, accountant="rdp") <= 4.0
    with pytest.raises(InfeasibleBudgetError, match=r"split.extra=.* beside the start costs"):
        fixed_query(START, 1.001 * most, 0.5, rule, BUDGET, "rdp")

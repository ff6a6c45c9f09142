"""Private query of NearPrivate: two releases, priced within what the start left.

Zhao et al. 2020 (https://arxiv.org/abs/1910.01177), section 3.3: DP-PCA at eps_pca, then noisy
counts of nearest neighbours at eps_support. Loads no torch, so that plans can be made without it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.calibration import gaussian_noise
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import AccountantName, shown_delta

PCA, VOTES = "pca", "votes"
_LEAST = 1e-3  # of the total: what is left has to be more
_STEPS = 24  # halvings of a bracket that spans a factor of 1e4: to 6e-7 of what is sought


def query_events(epsilon_pca: float, epsilon_support: float, budget: PrivacyBudget) -> Plan:
    """Return the two releases: Gaussian at (epsilon_pca, delta / 2), Laplace at epsilon_support.

    Noise multipliers are relative to sensitivities: of the second moment 1 in the L2 norm
    (``dp_pca``), of the counts by ``nearest_votes.SENSITIVITY`` in the L1 norm.

    Args:
        epsilon_pca: Of the second-moment matrix, by the exact formula for one Gaussian.
        epsilon_support: Of the counts, with delta 0.
        budget: Its delta counts.
    """
    half = replace(budget, target_epsilon=epsilon_pca, delta=budget.delta / 2)
    sigma = gaussian_noise(half, steps=1, accountant="pld")
    return Plan(
        (
            EventRun(Gaussian(sigma), phase=PCA),
            EventRun(Laplace(1.0 / epsilon_support), phase=VOTES),
        )
    )


@lru_cache(maxsize=1024)
def split_query(
    start: Plan, share: float, rule: str, budget: PrivacyBudget, accountant: AccountantName
) -> Plan:
    """Return the two releases that fit into a budget after a start.

    ``sum``: epsilons add up, and deltas (half of it for the start, half for the PCA), as in the
    paper. ``tight``: the accountant composes all events, which leaves more; both epsilons are
    larger by the same factor.

    Guarantees:
        ``epsilon_of(start + result)`` at the budget's delta is at most its epsilon, under both
        rules.

    Args:
        start: Private events that the trial rests on.
        share: Of what is left, the share that the PCA gets; in (0, 1).
        rule: ``sum`` or ``tight``.
        budget: Of the whole trial.
        accountant: Composes the events.
    Raises:
        InfeasibleBudgetError: The start leaves less than a thousandth of the budget.
    """
    total = budget.target_epsilon

    def events(extra: float) -> Plan:
        return query_events(extra * share, extra * (1 - share), budget)

    def fits(extra: float) -> bool:
        plan = start + events(extra)
        return epsilon_of(plan, delta=budget.delta, accountant=accountant) <= total

    most, low = 10 * total, _LEAST * total
    delta = budget.delta / 2 if rule == "sum" else budget.delta
    spent = epsilon_of(start, delta=delta, accountant=accountant)
    if rule == "sum":
        most = total - spent
    if most < low or not fits(low):
        raise InfeasibleBudgetError(
            f"the start leaves less than {low:g} for near_private: by split.rule={rule} it costs "
            f"epsilon={shown_epsilon(spent)} of {total:g} at delta={shown_delta(delta)} "
            f"({accountant}, {budget.neighboring_relation})",
            fix="start.epsilon: a smaller one; or raise privacy.trial_epsilon",
        )
    if fits(most):
        return events(most)
    high = most
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return events(low)


def fixed_query(
    start: Plan,
    extra: float,
    share: float,
    rule: str,
    budget: PrivacyBudget,
    accountant: AccountantName,
) -> Plan:
    """Return the two releases at epsilons that are given, whatever the start has cost.

    Guarantees:
        ``epsilon_of(start + result)`` at the budget's delta is at most its epsilon; under ``sum``
        the paper's sum is too.

    Args:
        start: Private events that the trial rests on.
        extra: Epsilon of the PCA plus that of the counts.
        share: Share of it that the PCA gets; in (0, 1).
        rule: ``sum`` or ``tight``, as for ``split_query``.
        budget: Of the whole trial.
        accountant: Composes the events.
    Raises:
        InfeasibleBudgetError: They do not fit beside the start.
    """
    query = query_events(extra * share, extra * (1 - share), budget)
    cost = epsilon_of(start + query, delta=budget.delta, accountant=accountant)
    if rule == "sum":
        by_sum = sum_rule_epsilon(start, query, delta=budget.delta, accountant=accountant)
        cost = max(cost, by_sum)
    if not cost <= budget.target_epsilon:
        raise InfeasibleBudgetError(
            f"split.extra={extra:g} beside the start costs epsilon={shown_epsilon(cost)} by "
            f"split.rule={rule} at delta={shown_delta(budget.delta)}, over "
            f"{budget.target_epsilon:g} ({accountant}, {budget.neighboring_relation})",
            fix="a smaller split.extra or start.epsilon; or raise privacy.trial_epsilon",
        )
    return query


def sum_rule_epsilon(
    start: Plan, query: Plan, *, delta: float, accountant: AccountantName
) -> float:
    """Return the paper's figure: epsilons of start, PCA and counts added up, and their deltas.

    Args:
        start: Private events that the trial rests on; half of delta is theirs.
        query: From ``query_events``; the other half is the Gaussian's.
        delta: Of the sum.
        accountant: Of the start; the Gaussian's is exact.
    """
    halves = [
        (start, accountant),
        (Plan(tuple(run for run in query.runs if isinstance(run.event, Gaussian))), "pld"),
    ]
    epsilon = sum(epsilon_of(plan, delta=delta / 2, accountant=name) for plan, name in halves)  # type: ignore[arg-type]
    return epsilon + sum(
        run.count / run.event.scale for run in query.runs if isinstance(run.event, Laplace)
    )

"""The Renyi filter of a composed study: one order, one budget, any adaptivity within it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy import rdp
from dpsweep.privacy.composition.base import FILTERED_PARTS, Composition, Cost, filtered
from dpsweep.privacy.events.losses import rounded_down
from dpsweep.privacy.events.multiset import by_class, multiset, plan_curve
from dpsweep.privacy.events.plan import Plan
from dpsweep.privacy.orders import FILLED_ORDERS, is_sparse
from dpsweep.privacy.terms import shown_delta

Array = NDArray[np.float64]


def _checked_order(order: float) -> float:
    order = validate.at_least("order", order, 1.01)
    if order > rdp.HIGH_ORDERS[-1]:
        raise BadInputError(f"order must be <= {rdp.HIGH_ORDERS[-1]}, got {order:g}")
    return order


def _conversion(order: float, delta: float) -> float:
    """Return what a Renyi cost at ``order`` grows by when it becomes an epsilon at ``delta``."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _budget(order: float, target_epsilon: float, delta: float) -> float:
    """Return B(order), below the formula by more than its rounding errors."""
    conversion = _conversion(order, delta)
    return target_epsilon - conversion - 1e-12 * (target_epsilon + abs(conversion))


@dataclass(frozen=True)
class RenyiFilter(Composition):
    """A Renyi order fixed before a study, and how much cost at that order all trials may add up to.

    B(a) = target_epsilon - [log(1 - 1/a) - log(delta a) / (a - 1)], the conversion of Canonne,
    Kamath and Steinke 2020 (https://arxiv.org/abs/2004.00010, proposition 12) solved for the cost.

    >>> filter = RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5)
    >>> round(filter.budget, 4), round(filter.epsilon(filter.budget), 4)
    (0.7859, 2.0)

    Guarantees:
        If no event is run whose cost would take the sum of all costs so far over ``budget``, the
        whole interaction is (order, budget)-Renyi DP, hence (target_epsilon, delta)-DP, although
        what the earlier events released decided which trials run, with which noise, and when they
        stop (Feldman and Zrnic 2021, https://arxiv.org/abs/2008.11193). Trials may run at the same
        time and interleave (Haney et al. 2023, https://arxiv.org/abs/2309.05901, for Renyi DP of a
        fixed order). The guarantee is ``target_epsilon``, whatever was spent: quoting the smaller
        epsilon of a study that stopped early would be another theorem.

        Not covered: an order or a budget chosen after private data were seen, other accountants
        (the same rule with privacy loss distributions is false, https://arxiv.org/abs/2602.06756),
        and outputs that no event describes.

    Attributes:
        order: alpha, 1.01 to 32768.
        budget: Largest sum of costs, in each part of the records.
        target_epsilon: What the study as a whole costs.
        delta: In (0, 1).
    Raises:
        BadInputError: A value is out of range, or the budget is more than B(order).
    """

    kind: ClassVar[str] = "filter"
    title: ClassVar[str] = "Filter"
    choice: ClassVar[str] = "filter"
    measure: ClassVar[str] = "Renyi cost"
    accountant: ClassVar[str] = "rdp"

    order: float
    budget: float
    target_epsilon: float
    delta: float

    def __post_init__(self) -> None:
        order = _checked_order(self.order)
        object.__setattr__(self, "order", order)
        target = validate.positive("target_epsilon", self.target_epsilon)
        object.__setattr__(self, "target_epsilon", target)
        delta = validate.in_unit_interval("delta", self.delta)
        object.__setattr__(self, "delta", delta)
        object.__setattr__(self, "budget", validate.positive("budget", self.budget))
        most = _budget(order, target, delta)
        if not self.budget <= most:
            raise BadInputError(
                f"a Renyi budget of {self.budget:g} at order {order:g} costs more than epsilon="
                f"{target:g} at delta={shown_delta(delta)}",
                because=f"the largest one is {most:.6g}",
            )

    @classmethod
    def at(cls, order: float, *, target_epsilon: float, delta: float) -> RenyiFilter:
        """Return the filter of an order that was chosen already."""
        budget = _budget(_checked_order(order), target_epsilon, delta)
        return cls(order, budget, target_epsilon, delta)

    @classmethod
    def choose(cls, plans: Sequence[Plan], *, target_epsilon: float, delta: float) -> RenyiFilter:
        """Return the filter whose order buys the most of all plans.

        At order a, B(a) / cost(a) copies of a plan fit into the budget. Of what a plan's own best
        order would buy, order a buys some share; the order with the largest mean share is taken.
        So trial lengths do not matter, and an order that is ruinous for some of the plans loses (a
        median would not see it). Any order is sound. Plans with more than 128 noise multipliers are
        looked at with slightly smaller ones.

        >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
        >>> plan = Plan((EventRun(PoissonGaussian(1.0, 0.01), 1000),))
        >>> RenyiFilter.choose([plan], target_epsilon=8.0, delta=1e-5).order
        3.7

        Args:
            plans: Plans that the declared space gives, training and validation events; they must
                not depend on private data.
            target_epsilon: Of the whole study.
            delta: In (0, 1).
        Raises:
            InfeasibleBudgetError: There is no plan, one has no finite cost, or no order leaves
                anything to spend.
        """
        validate.positive("target_epsilon", target_epsilon)
        validate.in_unit_interval("delta", delta)
        if not plans:
            raise InfeasibleBudgetError(
                "no plan to choose the order of the study's Renyi filter for",
                because="no sampled configuration is feasible",
                fix="a wider search space, or a larger privacy.trial_epsilon",
            )
        levels = range(len(rdp.HIGH_ORDERS) + 1)
        for orders in map(rdp.orders_at, levels):
            worth, budgets = _worths(plans, orders, target_epsilon, delta)
            best = int(np.argmax(worth))
            # Only where the grid's last order is the best can a higher one be better.
            if worth[best] > 0 and best < len(orders) - 1:
                break
        if worth[best] > 0 and is_sparse(orders[best]):
            orders = FILLED_ORDERS
            worth, _ = _worths(plans, orders, target_epsilon, delta)
            best = int(np.argmax(worth))
        if not worth[best] > 0:
            raise InfeasibleBudgetError(
                f"study_epsilon={target_epsilon:g} at delta={shown_delta(delta)} leaves nothing to "
                f"spend at any Renyi order up to {orders[-1]:g}",
                because="turning a Renyi cost into an epsilon alone takes at least "
                f"{target_epsilon - budgets.max():.4g} of it",
                fix="a larger study_epsilon, or a larger delta",
            )
        return cls.at(float(orders[best]), target_epsilon=target_epsilon, delta=delta)

    def cost(self, plan: Plan) -> dict[str, float]:
        """Return the Renyi cost of a plan at the filter's order, for each part of the records.

        Returns:
            Both keys, ``private`` and ``validation``; infinite where an event has no bound.
        """
        return {part: _cost_at(self.order, each) for part, each in filtered(plan).items()}

    @property
    def limits(self) -> Mapping[str, float]:
        """The budget, in each part of the records."""
        return dict.fromkeys(FILTERED_PARTS, self.budget)

    def words(self, name: str, amount: float) -> str:
        """Return a Renyi cost with its order and its part."""
        return f"a Renyi cost of {amount:.6g} at order {self.order:g} on the {name} records"

    def about(self) -> str:
        """Return order and budget."""
        return f"Renyi DP at order {self.order:g}, budget {self.budget:.6g}"

    @property
    def spent_accountant(self) -> str:
        """Renyi DP at the one order."""
        return f"rdp at order {self.order:g}"

    def spent_epsilon(self, cost: Cost) -> float:
        """Return a Renyi cost by part as an epsilon at delta: for information, no claim."""
        return self.epsilon(max(cost.values()))

    def epsilon(self, spent: float) -> float:
        """Return a Renyi cost at this order as an epsilon at delta: for information, no claim."""
        curve, orders = np.array([[float(spent)]]), np.array([self.order])
        return float(rdp.epsilons(curve, orders, self.delta)[0][0])

    def to_json(self) -> dict[str, float]:
        """Return the fields; floats survive ``json`` exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RenyiFilter:
        """Rebuild a filter that ``to_json`` wrote."""
        return cls(raw["order"], raw["budget"], raw["target_epsilon"], raw["delta"])


def _worths(
    plans: Sequence[Plan], orders: Array, target_epsilon: float, delta: float
) -> tuple[Array, Array]:
    """Return what each order is worth to plans (``_mean_share``), and its budget."""
    budgets = np.array([_budget(order, target_epsilon, delta) for order in orders])
    return _mean_share(np.array([_thinned_curve(plan, orders) for plan in plans]), budgets), budgets


def _mean_share(costs: Array, budgets: Array) -> Array:
    """Return, per order, the mean over plans of copies bought / copies bought at the best order.

    Args:
        costs: Renyi curves, shape (plans, orders).
        budgets: B of each order, negative where nothing can be spent.
    Raises:
        InfeasibleBudgetError: A plan has no finite cost at any order.
    """
    endless = int(np.all(np.isinf(costs), axis=1).sum())
    if endless:
        raise InfeasibleBudgetError(
            f"{endless} of {len(costs)} plans have no finite privacy cost, so no study_epsilon "
            "covers them",
            because="a method without noise, or with next to none, has no finite epsilon",
            fix="remove it from the search space, or use accounting: unaccounted",
        )
    # A plan that is free buys as many as the budget is large.
    copies = np.maximum(budgets, 0.0) / np.maximum(costs, 1e-200)
    most = copies.max(axis=1, keepdims=True)
    return np.asarray(np.mean(np.where(most > 0, copies / np.where(most > 0, most, 1), 0), axis=0))


def _thinned_curve(plan: Plan, orders: Array) -> Array:
    """Return the larger of the curves of a plan's parts, on few noise multipliers."""
    curves = [plan_curve(rounded_down(multiset(each)), orders) for each in filtered(plan).values()]
    curve = np.maximum(*curves)
    return np.where(np.isnan(curve), np.inf, curve)


def _cost_at(order: float, plan: Plan) -> float:
    """Return the sum of the events' Renyi divergences at one order; the order of events is free."""
    runs = by_class((run.event for run in plan.runs), plan.runs)
    terms = [
        term
        for group in runs
        for term in type(group[0].event).costs_at([(r.event, r.count) for r in group], order)
    ]
    # What is not a number, or would refund others, bounds nothing.
    return math.fsum(terms) if all(term >= 0 for term in terms) else math.inf

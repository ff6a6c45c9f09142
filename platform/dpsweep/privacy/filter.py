"""The Renyi filter of a composed study: one order, one budget, any adaptivity within it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy import rdp
from dpsweep.privacy.events.losses import rounded_down
from dpsweep.privacy.events.multiset import by_class, multiset, plan_curve
from dpsweep.privacy.events.plan import CHARGED_PARTS, Plan

Array = NDArray[np.float64]
#: Renyi cost at the filter's order, by part of the records: private and validation.
Cost = Mapping[str, float]

#: What a reservation holds beyond the cost of its plan, so that running exactly the plan is never
#: refused for a rounding error. The ledger of a trial allows half of it.
RESERVATION_SLACK = 1e-9


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
class RenyiFilter:
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
                f"{target:g} at delta={delta:g}",
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
        for level in range(len(rdp.HIGH_ORDERS) + 1):
            orders = rdp.orders_at(level)
            budgets = np.array([_budget(order, target_epsilon, delta) for order in orders])
            worth = _mean_share(np.array([_thinned_curve(plan, orders) for plan in plans]), budgets)
            best = int(np.argmax(worth))
            # Only where the grid's last order is the best can a higher one be better.
            if worth[best] > 0 and best < len(orders) - 1:
                break
        if not worth[best] > 0:
            raise InfeasibleBudgetError(
                f"study_epsilon={target_epsilon:g} at delta={delta:g} leaves nothing to spend at "
                f"any Renyi order up to {orders[-1]:g}",
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
        return {part: _cost_at(self.order, plan.part(part)) for part in CHARGED_PARTS}

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
    curves = [plan_curve(rounded_down(multiset(plan.part(part))), orders) for part in CHARGED_PARTS]
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


# --- Who holds how much ---------------------------------------------------------------------

# Costs are added as whole multiples of 2^-64: sums and differences of any number of them are exact.
_BITS = 64
_UNBOUNDED = 1 << 1000


def _units(cost: float) -> int:
    """Return a cost in units, rounded up; what is no finite number fits into no budget."""
    return math.ceil(math.ldexp(cost, _BITS)) if 0 <= cost <= 1e100 else _UNBOUNDED


def _nothing() -> dict[str, int]:
    return {part: 0 for part in CHARGED_PARTS}


def _number(units: int) -> float:
    return units / (1 << _BITS) if units < _UNBOUNDED else math.inf


class FilterAccount:
    """Who holds how much of one filter's budget: reservations of running trials, costs of others.

    >>> account = FilterAccount(RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5))
    >>> account.reserve(0, {"private": 0.5, "validation": 0.0})
    True
    >>> account.reserve(1, {"private": 0.5, "validation": 0.0})
    False
    >>> account.settle(0, {"private": 0.1, "validation": 0.0})
    >>> account.reserve(1, {"private": 0.5, "validation": 0.0})
    True

    Guarantees:
        At every moment, in every part, the sum of what running trials may still charge at most and
        of what all others did charge is within the budget, as long as no trial charges more than
        it reserved (``TrialLedger`` refuses that). So the condition of the filter's theorem holds
        for every interleaving of the trials' events. Sums are exact.

    Args:
        filter: The study's filter.
    """

    def __init__(self, filter: RenyiFilter) -> None:
        self.filter = filter
        self._budget = math.floor(math.ldexp(filter.budget, _BITS))
        self._running: dict[int, dict[str, int]] = {}
        self._settled: dict[int, dict[str, int]] = {}
        self._total = _nothing()

    def fits(self, cost: Cost, *, trial: int | None = None) -> bool:
        """Say whether a reservation would be accepted now; without ``trial``, one of a new trial.

        Nothing new is ever accepted where a part is over its budget, even at no cost.
        """
        if trial in self._running:
            return True
        held = self._held(trial)
        asked = self._asked(trial, cost)
        return all(
            self._total[part] - held[part] + asked[part] <= self._budget for part in CHARGED_PARTS
        )

    def reserve(self, trial: int, cost: Cost) -> bool:
        """Hold ``cost`` for a trial that is about to run, if it fits.

        Args:
            trial: A running trial keeps what it holds. A paused one holds ``cost`` instead of what
                it has charged so far.
            cost: What the trial may charge at most, from its first event on.
        Returns:
            False if it does not fit; nothing has changed then.
        """
        if trial in self._running:
            return True
        if not self.fits(cost, trial=trial):
            return False
        asked, held = self._asked(trial, cost), self._held(trial)
        self._running[trial] = asked
        self._add(asked, held)
        return True

    def settle(self, trial: int, actual: Cost) -> None:
        """Replace a trial's reservation by what it charged; the trial has ended or pauses.

        A trial's amount never falls below what was settled before.
        """
        before = self._settled.get(trial, _nothing())
        charged: dict[str, int] = {
            part: max(_units(actual[part]), before[part]) for part in CHARGED_PARTS
        }
        self._add(charged, self._running.pop(trial, before))
        self._settled[trial] = charged

    def settled(self, trial: int) -> dict[str, float]:
        """Return what was settled for a trial, by part; 0 before that."""
        return {part: _number(units) for part, units in self._held(trial).items()}

    def _held(self, trial: int | None) -> dict[str, int]:
        return _nothing() if trial is None else self._settled.get(trial, _nothing())

    def _asked(self, trial: int | None, cost: Cost) -> dict[str, int]:
        held = self._held(trial)
        return {
            part: max(_units(cost[part] * (1 + RESERVATION_SLACK)), held[part])
            for part in CHARGED_PARTS
        }

    def _add(self, new: Mapping[str, int], old: Mapping[str, int]) -> None:
        for part in CHARGED_PARTS:
            self._total[part] += new[part] - old[part]

    @property
    def committed(self) -> dict[str, float]:
        """What is reserved or charged, by part."""
        return {part: _number(self._total[part]) for part in CHARGED_PARTS}

    @property
    def remaining(self) -> dict[str, float]:
        """What can still be reserved, by part; 0 where the budget is used up."""
        return {part: _number(max(self._budget - self._total[part], 0)) for part in CHARGED_PARTS}

    @property
    def is_over(self) -> bool:
        """True when more was charged than the budget allows: a trial passed its reservation."""
        return any(total > self._budget for total in self._total.values())

    @property
    def num_in_flight(self) -> int:
        """Number of trials that hold a reservation."""
        return len(self._running)

"""The Gaussian filter of a composed study without sampling: no price for adaptivity at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.privacy.composition.base import FILTERED_PARTS, Composition, Cost, filtered
from dpsweep.privacy.events.plan import Plan
from dpsweep.privacy.terms import shown_delta


@dataclass(frozen=True)
class GaussianFilter(Composition):
    """A filter for events that are Gaussian noise over all records, each with noise of its own.

    Of each part of the records, the sum of 1 / noise_multiplier^2 stays within ``budget`` = mu^2,
    where mu is the largest Gaussian mechanism within (``target_epsilon``, ``delta``) by the exact
    formula of Balle and Wang 2018 (https://arxiv.org/abs/1805.06530, theorem 8).

    >>> from dpsweep.privacy.events import EventRun, Gaussian
    >>> filter = GaussianFilter.at(target_epsilon=1.0, delta=1e-5)
    >>> step = filter.cost(Plan((EventRun(Gaussian(20.0)),)))["private"]
    >>> round(filter.budget**0.5, 6), int(filter.budget / step)
    (0.268051, 28)

    Guarantees:
        If no event is run whose cost would take the sum of all costs so far over ``budget``, the
        whole interaction is mu-Gaussian DP, hence (target_epsilon, delta)-DP, although what the
        earlier events released decided which trials run, with how much noise, and when they stop
        (Smith and Thakurta 2022, https://arxiv.org/abs/2210.17520). Trials may interleave: one
        filter holds all of them.

        Not covered: any other event. A plan that holds one costs infinitely much.

    Attributes:
        budget: mu^2, largest sum of costs in each part of the records.
        target_epsilon: What the study as a whole costs.
        delta: In (0, 1).
    Raises:
        BadInputError: A value is out of range, or the budget is more than that mu^2.
    """

    kind: ClassVar[str] = "gaussian_filter"
    title: ClassVar[str] = "Filter"
    choice: ClassVar[str] = "filter"
    measure: ClassVar[str] = "1 / noise_multiplier^2"
    accountant: ClassVar[str] = "gdp"

    budget: float
    target_epsilon: float
    delta: float

    def __post_init__(self) -> None:
        target = validate.positive("target_epsilon", self.target_epsilon)
        object.__setattr__(self, "target_epsilon", target)
        object.__setattr__(self, "delta", validate.in_unit_interval("delta", self.delta))
        budget = validate.positive("budget", self.budget)
        object.__setattr__(self, "budget", budget)
        if not analytic_gaussian_epsilon(math.sqrt(budget), self.delta) <= target:
            raise BadInputError(
                f"a sum of 1 / noise_multiplier^2 of {budget:g} costs more than "
                f"epsilon={target:g} at delta={shown_delta(self.delta)}"
            )

    @classmethod
    def at(cls, *, target_epsilon: float, delta: float) -> GaussianFilter:
        """Return the filter with the largest budget."""
        validate.positive("target_epsilon", target_epsilon)
        low, high = 0.0, 1.0
        while analytic_gaussian_epsilon(high, delta) <= target_epsilon:
            low, high = high, 2 * high
        while high - low > 1e-13 * high:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            is_within = analytic_gaussian_epsilon(middle, delta) <= target_epsilon
            low, high = (middle, high) if is_within else (low, middle)
        # Where mu is small, what epsilon is rounded up by is no smooth function of it.
        for shrink in (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7):
            budget = low * low * (1 - shrink)
            if analytic_gaussian_epsilon(math.sqrt(budget), delta) <= target_epsilon:
                break
        return cls(budget, target_epsilon, delta)

    @staticmethod
    def covers(plan: Plan) -> bool:
        """Say whether all that a plan asks protected records is Gaussian noise over all of them."""
        charged = (run.event.simplified() for run in plan.runs if run.part != "public")
        return all(event is None or event.gaussian_variance() is not None for event in charged)

    @property
    def limits(self) -> Mapping[str, float]:
        """The budget, in each part of the records."""
        return dict.fromkeys(FILTERED_PARTS, self.budget)

    def cost(self, plan: Plan) -> dict[str, float]:
        """Return the sum of 1 / noise_multiplier^2, for each part of the records, rounded up."""
        return {part: _precision(each) for part, each in filtered(plan).items()}

    def words(self, name: str, amount: float) -> str:
        """Return the sum with its part."""
        return f"a sum of 1 / noise_multiplier^2 of {amount:.6g} on the {name} records"

    def refusal(self, plan: Plan) -> str:
        """Say that a plan samples; empty: it does not."""
        if self.covers(plan):
            return ""
        return (
            "its plan is not Gaussian noise over all records alone, and the study's filter, chosen "
            "by a sample of its space, covers nothing else"
        )

    def about(self) -> str:
        """Return mu."""
        return f"Gaussian DP, mu {math.sqrt(self.budget):.6g} of all events together"

    @property
    def spent_accountant(self) -> str:
        """Gaussian DP."""
        return "gdp"

    def spent_epsilon(self, cost: Cost) -> float:
        """Return a cost by part as an epsilon at delta: for information, no claim."""
        spent = max(cost.values())
        return analytic_gaussian_epsilon(math.sqrt(spent), self.delta) if spent < 1e9 else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the fields; floats survive ``json`` exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> GaussianFilter:
        """Rebuild a filter that ``to_json`` wrote."""
        return cls(raw["budget"], raw["target_epsilon"], raw["delta"])


def _precision(plan: Plan) -> float:
    terms = []
    for run in plan.runs:
        event = run.event.simplified()
        if event is None:
            continue
        variance = event.gaussian_variance()
        if variance is None or not variance > 0:
            return math.inf
        terms.append(run.count / variance)
    return math.fsum(terms) * (1 + 1e-14)

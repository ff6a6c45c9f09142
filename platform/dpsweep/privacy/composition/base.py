"""The interface of a composition: what all trials of a study may spend, and what each plan takes.

A composition is fixed and written to the study's ledger before the first private record is read.
``CompositionAccount`` says who holds how much of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from dpsweep.privacy.events.plan import REST, Part, Plan

#: What a plan takes of each of a composition's limits, by their names.
Cost = Mapping[str, float]

#: The parts of the records that filters have limits for.
FILTERED_PARTS: tuple[Part, ...] = ("private", "validation")

#: What a reservation holds beyond the cost of its plan, so that running exactly the plan is never
#: refused for a rounding error. The ledger of a trial allows half of it.
RESERVATION_SLACK = 1e-9


def filtered(plan: Plan) -> Mapping[Part, Plan]:
    """Return the events of each part that filters have a limit for.

    Whether the rest of the private records is disjoint from ``private`` only ``SplitComposition``
    knows, which takes it out; elsewhere the two are added.
    """
    plan = plan.moved(REST, "private")
    return {part: plan.part(part) for part in FILTERED_PARTS}


class Composition(ABC):
    """A rule that keeps a whole study within (``target_epsilon``, ``delta``).

    The rule is: of each limit, all that was ever charged and all that running trials may still
    charge add up to no more than the limit. Under which theorem that is enough is said by each.

    Attributes:
        kind: Of its record on the study's ledger.
        target_epsilon: What the study as a whole costs, whatever was spent of it.
        delta: In (0, 1).
    """

    kind: ClassVar[str]
    target_epsilon: float
    delta: float

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name on a privacy card."""

    @property
    @abstractmethod
    def choice(self) -> str:
        """The value of ``privacy.composition`` that it belongs to."""

    @property
    @abstractmethod
    def measure(self) -> str:
        """What shares of it are shares of, in words."""

    @property
    @abstractmethod
    def accountant(self) -> str:
        """Which accountant bounds the study's epsilon."""

    @property
    def slack(self) -> float:
        """What a reservation may hold beyond the cost of its plan, as a share of it."""
        return RESERVATION_SLACK

    @property
    def searched_share(self) -> float | None:
        """Share of the private records that the search is on; None: all of them."""
        return None

    @property
    def of_trials(self) -> Composition:
        """What bounds the trials of the search: itself, or a part of it."""
        return self

    @property
    @abstractmethod
    def limits(self) -> Mapping[str, float]:
        """The largest sum of costs, by name; every cost has these names."""

    @abstractmethod
    def cost(self, plan: Plan) -> dict[str, float]:
        """Return what a plan takes of each limit; infinite where it cannot be bounded."""

    @abstractmethod
    def words(self, name: str, amount: float) -> str:
        """Return an amount of one limit in words, for messages."""

    @abstractmethod
    def about(self) -> str:
        """Return all of it that a reader may want, in a line for a privacy card."""

    @property
    def spent_accountant(self) -> str:
        """Name of what computes ``spent_epsilon``; empty where it is no such number."""
        return ""

    def spent_epsilon(self, cost: Cost) -> float:
        """Return an epsilon of what was spent, for information where there is one: no claim.

        Where nothing below the declared epsilon may be said, it is the declared one.
        """
        return self.target_epsilon

    def phase(self, name: str) -> int | None:
        """Return in which phase of the study a limit is open, in order; None: in all of them."""
        return 0

    def verify(self) -> None:
        """Refuse a composition whose record was edited so that it costs more than its target.

        Raises:
            LedgerError: It does.
        """
        return None  # most refuse it as they are read

    def refusal(self, plan: Plan) -> str:
        """Say why no budget at all would admit a plan; empty: one might."""
        return ""

    def as_declared(self, plan: Plan) -> Plan:
        """Return a plan with the declared events where they differ by a trifle of noise alone.

        See ``recalibrated.as_recorded``; a composition that declares no events changes nothing.
        """
        return plan

    def share(self, cost: Cost) -> float:
        """Return the largest share that a cost takes of a limit."""
        return max((cost[name] / limit for name, limit in self.limits.items() if limit), default=0)

    def is_over(self, cost: Cost) -> bool:
        """Say whether a cost, of a study or of a trial, is more than there is."""
        return not all(
            cost[name] <= limit * (1 + self.slack) for name, limit in self.limits.items()
        )

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data; floats survive ``json`` exactly."""

    @classmethod
    @abstractmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Rebuild what ``to_json`` wrote."""

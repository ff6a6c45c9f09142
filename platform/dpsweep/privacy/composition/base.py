"""The interface of a composition: what all trials of a study may spend, and what each plan takes.

A composition is fixed and written to the study's ledger before the first private record is read.
``CompositionAccount`` says who holds how much of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import Self

from dpsweep.privacy.events.plan import Plan

#: What a plan takes of each of a composition's limits, by their names.
Cost = Mapping[str, float]

#: What a reservation holds beyond the cost of its plan, so that running exactly the plan is never
#: refused for a rounding error. The ledger of a trial allows half of it.
RESERVATION_SLACK = 1e-9


class Composition(ABC):
    """A rule that keeps a whole study within (``target_epsilon``, ``delta``).

    The rule is: of each limit, all that was ever charged and all that running trials may still
    charge add up to no more than the limit. Under which theorem that is enough is said by each.

    Attributes:
        kind: Of its record on the study's ledger.
        title: Its name on a privacy card.
        choice: The value of ``privacy.composition`` that it belongs to.
        measure: What shares of it are shares of, in words.
        accountant: Which accountant bounds the study's epsilon.
        slack: What a reservation may hold beyond the cost of its plan, as a share of it.
        target_epsilon: What the study as a whole costs, whatever was spent of it.
        delta: In (0, 1).
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    choice: ClassVar[str]
    measure: ClassVar[str]
    accountant: ClassVar[str]
    slack: ClassVar[float] = RESERVATION_SLACK
    target_epsilon: float
    delta: float

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
        """Return in which phase of the study a limit is open; they follow each other. None: all."""
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

"""Declared composition: how many events of which kind a study may cause, said before the first.

The field calls it adaptive composition with privacy parameters that are fixed in advance. What the
parameters buy may depend on everything that was seen; the parameters may not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, LedgerError
from dpsweep.foundation.words import counted
from dpsweep.privacy.accountants import fine_pld_epsilon
from dpsweep.privacy.composition.base import FILTERED_PARTS, Composition
from dpsweep.privacy.composition.recalibrated import as_recorded
from dpsweep.privacy.events.base import PrivacyEvent
from dpsweep.privacy.events.multiset import in_order
from dpsweep.privacy.events.plan import EventRun, Part, Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta

_FEW = 4  # classes that are named one by one
#: Name of the limit for events of no declared class: there is nothing of it.
UNDECLARED = "undeclared"
_ANY = "any"  # phase, on record


@dataclass(frozen=True)
class DeclaredClass:
    """A class of events that a study may cause so many of.

    Attributes:
        event: The event; each that is charged equals it.
        count: How many of them there are at most, spares for crashes included.
        part: Whose records they read: ``private`` or ``validation``.
        phase: When: of the phases of a study, which follow each other; None: at any time. That is
            for the only class of its part, whose order is fixed whatever comes when.
    """

    event: PrivacyEvent
    count: int
    part: Part = "private"
    phase: int | None = 0


@dataclass(frozen=True)
class DeclaredComposition(Composition):
    """Classes of events with their numbers, fixed before a study; its epsilon is that of them all.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> plan = Plan((EventRun(PoissonGaussian(2.0, 0.01), 300),))
    >>> eight = DeclaredComposition.of([(plan, 8)], target_epsilon=1.0, delta=1e-5)
    >>> round(eight.epsilon, 2), eight.limits
    (0.99, {'0': 2400, 'undeclared': 0})
    >>> eight.cost(plan)
    {'0': 300, 'undeclared': 0}

    Guarantees:
        Every charged event takes one unit of the class that it equals; a class that is empty, and
        an event of no class, are refused. Then the whole interaction is (target_epsilon,
        delta)-DP, although everything else about an event, its function, learning rate, clip norm
        and start point, which trial goes on and when it stops, may depend on all that was released
        before. Nothing is given back, no class is added, and no smaller epsilon is ever stated,
        whatever was not used: the units that are left may be imagined run and ignored.

        Why: each event is dominated by the pair of distributions of its class, whatever came
        before. If the class of the t-th event is a function of t alone, the transcript is
        dominated by the product of all declared pairs (adaptive composition of dominating pairs:
        Dong, Roth and Su 2022, https://arxiv.org/abs/1905.02383, theorem 4; Zhu, Dong and Wang
        2022, https://arxiv.org/abs/2106.08567, theorem 10), and its epsilon is that of the product
        at delta, by privacy loss distributions. Phases make it so where there are several classes:
        one begins when the last one has ended, and it does not come again. A part of the records
        with one class needs none: of two datasets that differ in a record of this part, the other
        parts' events are the same functions of what was released, so they are post-processing, and
        whenever this part is read, it is by the same class. Within a phase, trials
        that run at once may take classes in an order that depends on what was seen. Then each class
        is one interactive mechanism, the composition of its units, and these are run concurrently,
        which costs no more than their product (Vadhan and Zhang 2023,
        https://arxiv.org/abs/2207.08335, for f-DP; with filters Haney et al. 2023,
        https://arxiv.org/abs/2309.05901).

        The parts of the records are disjoint, so their epsilons are not added: the larger counts.

        Not covered: a noise multiplier or sampling rate that was chosen after private records were
        seen, and outputs that no event describes.

    Attributes:
        classes: At least one; none twice.
        target_epsilon: What the study as a whole costs.
        delta: In (0, 1).
        epsilon: Of all classes together at delta, at most ``target_epsilon``.
    Raises:
        BadInputError: A value is out of range, a class is there twice, or all of them together cost
            more than ``target_epsilon``.
    """

    kind: ClassVar[str] = "declared"
    title: ClassVar[str] = "Declared"
    choice: ClassVar[str] = "declared"
    measure: ClassVar[str] = "declared events"
    accountant: ClassVar[str] = "pld"
    slack: ClassVar[float] = 0.0  # whole numbers need none

    classes: tuple[DeclaredClass, ...]
    target_epsilon: float
    delta: float
    epsilon: float

    def __post_init__(self) -> None:
        target = validate.positive("target_epsilon", self.target_epsilon)
        object.__setattr__(self, "target_epsilon", target)
        object.__setattr__(self, "delta", validate.in_unit_interval("delta", self.delta))
        if not self.classes:
            raise BadInputError("a declared composition needs a class of events")
        for declared in self.classes:
            validate.one_of("part", declared.part, FILTERED_PARTS)
            validate.whole("count", declared.count, low=1)
            if declared.phase is not None:
                validate.whole("phase", declared.phase, low=0)
            elif sum(other.part == declared.part for other in self.classes) > 1:
                raise BadInputError(
                    f"of several classes on {declared.part} records, each needs a phase"
                )
        if len(self._names) != len(self.classes):
            raise BadInputError(
                "a class of events is declared twice", fix="declare it once, with the sum"
            )
        if not self.epsilon <= target:
            raise BadInputError(
                f"the declared events cost epsilon={shown_epsilon(self.epsilon)} at "
                f"delta={shown_delta(self.delta)}, over {target:g}"
            )

    @classmethod
    def of(
        cls, plans: Iterable[tuple[Plan, int]], *, target_epsilon: float, delta: float
    ) -> DeclaredComposition:
        """Return the declaration of plans and how often each may be run, all in one phase."""
        return cls.at(declared_classes([list(plans)]), target_epsilon=target_epsilon, delta=delta)

    @classmethod
    def at(
        cls, classes: Iterable[DeclaredClass], *, target_epsilon: float, delta: float
    ) -> DeclaredComposition:
        """Return the declaration of these classes, with their epsilon.

        Raises:
            BadInputError: An event has no privacy loss distribution, or as above.
        """
        declared = tuple(classes)
        return cls(declared, target_epsilon, delta, declared_epsilon(declared, delta))

    @cached_property
    def _names(self) -> dict[tuple[Part, PrivacyEvent], str]:
        return {(c.part, c.event): str(index) for index, c in enumerate(self.classes)}

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """The number of units by class, and none of what is undeclared."""
        return {str(i): c.count for i, c in enumerate(self.classes)} | {UNDECLARED: 0}

    def cost(self, plan: Plan) -> dict[str, float]:
        """Return how many units of each class a plan takes; what costs nothing takes none."""
        units: dict[str, float] = dict.fromkeys(self.limits, 0)
        for run in plan.runs:
            event = run.event.simplified() if run.part != "public" else None
            if event is not None:
                units[self._names.get((run.part, event), UNDECLARED)] += run.count
        return units

    def words(self, name: str, amount: float) -> str:
        """Return a number of events with what they are."""
        if name == UNDECLARED:
            return f"{amount:g} events of no declared class"
        declared = self.classes[int(name)]
        return f"{amount:g} times {event_words(declared.event)} on the {declared.part} records"

    def verify(self) -> None:
        """Compute the epsilon of what is on record anew; see ``Composition``."""
        if not declared_epsilon(self.classes, self.delta) <= self.target_epsilon * (1 + 1e-9):
            raise LedgerError(
                f"the events that the study has declared cost more than epsilon="
                f"{self.target_epsilon:g} at delta={shown_delta(self.delta)}",
                because="their record on its ledger was edited",
                fix="restore the ledger, or start a new study under another name",
            )

    def about(self) -> str:
        """Return how many events of which classes there are; of many classes, the number."""
        if len(self.classes) > _FEW:
            total = sum(declared.count for declared in self.classes)
            return f"{counted(total, 'event')} of {len(self.classes)} classes"
        return ", ".join(
            f"{c.count} times {event_words(c.event)} on {c.part} records" for c in self.classes
        )

    def phase(self, name: str) -> int | None:
        """Return the phase of a class; what is undeclared has none, and no units."""
        return None if name == UNDECLARED else self.classes[int(name)].phase

    def refusal(self, plan: Plan) -> str:
        """Say which events of a plan, or of a phase's part of it, are not declared; "": all are."""
        for run in plan.runs:
            event = run.event.simplified() if run.part != "public" else None
            if event is not None and (run.part, event) not in self._names:
                return (
                    f"{event_words(event)} on the {run.part} records is not among the events that "
                    "the study has declared"
                )
        phases = {self.phase(name) for name, units in self.cost(plan).items() if units}
        several = len(phases - {None}) > 1
        return "its events are declared in several phases" if several else ""

    def as_declared(self, plan: Plan) -> Plan:
        """Return a plan with the declared events where another version has calibrated its noise."""
        return as_recorded(plan, self._names)

    def to_json(self) -> dict[str, Any]:
        """Return the fields; classes are segments of a plan, each with its number as its phase."""
        runs = tuple(
            EventRun(c.event, c.count, _ANY if c.phase is None else str(c.phase), c.part)
            for c in self.classes
        )
        return {
            "classes": Plan(runs).to_json(),
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "epsilon": self.epsilon,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DeclaredComposition:
        """Rebuild what ``to_json`` wrote.

        Raises:
            BadInputError: It is none.
        """
        classes = tuple(
            DeclaredClass(
                run.event, run.count, run.part, None if run.phase == _ANY else int(run.phase)
            )
            for run in Plan.from_json(raw["classes"]).runs
        )
        return cls(classes, raw["target_epsilon"], raw["delta"], raw["epsilon"])


def declared_classes(
    phases: Sequence[Sequence[tuple[Plan, int]]], *, share: float = 1.0
) -> tuple[DeclaredClass, ...]:
    """Return the classes of plans and how often each may be run, by phase.

    A score on validation records may stand in several if all scores are the same event.

    Args:
        phases: For each phase, plans and how often each may be run.
        share: Of the last phase, this share of its units, rounded down.
    Raises:
        BadInputError: Another event stands in two phases.
    """
    units: dict[tuple[Part, PrivacyEvent], dict[int, int]] = {}
    for phase, plans in enumerate(phases):
        for plan, copies in plans:
            for run in plan.runs:
                event = run.event.simplified() if run.part != "public" else None
                if event is not None and copies:
                    counts = units.setdefault((run.part, event), {})
                    counts[phase] = counts.get(phase, 0) + run.count * copies
    parts = [part for part, _ in units]
    last = len(phases) - 1
    classes = []
    for (part, event), counts in units.items():
        if len(counts) > 1 and (part == "private" or parts.count(part) > 1):
            first, second, *_ = sorted(counts)
            raise BadInputError(
                f"{event_words(event)} is declared in two phases, {first} and {second}",
                because="they follow each other, so that the order of classes is fixed",
                fix="give the phases different noise",
            )
        if last in counts:
            counts[last] = math.floor(counts[last] * share + 1e-9)
        at = next(iter(counts)) if len(counts) == 1 else None
        if total := sum(counts.values()):
            classes.append(DeclaredClass(event, total, part, at))
    return tuple(sorted(classes, key=lambda c: (c.phase or 0, c.part, c.event.sort_key())))


def event_words(event: PrivacyEvent) -> str:
    """Return an event as messages name it.

    >>> from dpsweep.privacy.events import PoissonGaussian
    >>> event_words(PoissonGaussian(3.2404603594, 0.0890125))
    'poisson_gaussian (noise_multiplier 3.24046, sample_rate 0.0890125)'
    """
    fields = {key: value for key, value in event.to_json().items() if key != "event"}
    values = (f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in fields.items())
    return f"{event.name} ({', '.join(values)})" if fields else event.name


def declared_epsilon(classes: Sequence[DeclaredClass], delta: float) -> float:
    """Return the epsilon of all units of these classes, rounded up; 0 without any.

    Raises:
        BadInputError: An event has no privacy loss distribution.
    """
    return max((epsilon for epsilon, _ in _figures(classes, delta)), default=0.0)


def declared_interval(classes: Sequence[DeclaredClass], delta: float) -> float:
    """Return the coarsest discretisation of losses that the epsilon was computed at; 0: none."""
    return max((interval for _, interval in _figures(classes, delta)), default=0.0)


def _figures(classes: Sequence[DeclaredClass], delta: float) -> list[tuple[float, float]]:
    """Return epsilon and discretisation of each part of the records."""
    return [
        fine_pld_epsilon(in_order((c.event, c.count) for c in classes if c.part == part), delta)
        for part in sorted({declared.part for declared in classes})
    ]

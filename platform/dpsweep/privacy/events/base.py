"""The interface of a privacy event: one access to protected records, and all that is known of it.

An event says how it is written down, how records enter it, and what it costs: a Renyi curve and,
where there is one, a form that privacy loss distributions are computed from. Accountants, clocks
and filters add these up and know no event by name.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.privacy import rdp

Array = NDArray[np.float64]
#: Returns the value of a field as it is kept; raises ``BadInputError`` with the field's name.
Check = Callable[[str, Any], Any]


class PrivacyEvent(ABC):
    """One access to protected records, with its cost for add-or-remove-one neighbors.

    A subclass is a frozen dataclass whose fields are the keys of ``checks``; it is found by the
    name of its row in ``EVENTS``, or of its entry point in the group ``dpsweep.events``.
    Subclass ``dpsweep.testing.events.EventConformance`` for it.

    >>> from dataclasses import dataclass
    >>> from dpsweep.foundation.validate import positive
    >>> @dataclass(frozen=True)
    ... class Tree(PrivacyEvent):  # noise of one Gaussian for all nodes that a record is in
    ...     noise_multiplier: float
    ...     depth: float
    ...     name = "tree"
    ...     checks = {"noise_multiplier": positive, "depth": positive}
    ...     sampling = "full_batch"
    ...     def renyi(self, orders):
    ...         return orders * self.depth / (2 * self.noise_multiplier**2)
    >>> Tree(4, 8).to_json()
    {'event': 'tree', 'noise_multiplier': 4.0, 'depth': 8.0}

    Guarantees:
        A class whose events would not be equal again when they are read from a ledger is refused.
        Of an event that another package brings, dpsweep guarantees the arithmetic alone: its curve
        is added ``count`` times to those of other events, converted to an epsilon that is rounded
        up, charged before it runs, and refused where it is negative. That the curve bounds what
        the method does is the package's claim, as is all else that it overrides (``dp_event``,
        ``pure_epsilon``, ``gaussian_variance``, ..); no check can show it.
    """

    #: Name in events files and ledgers; that of its row in ``EVENTS``.
    name: ClassVar[str]
    #: Field -> its check, in the order of the file.
    checks: ClassVar[Mapping[str, Check]] = {}
    #: Key of the number of repetitions in an events file.
    count_key: ClassVar[str] = "count"
    #: Why accountant ``pld`` cannot bound it although there may be a ``dp_event``; None if it can.
    no_pld: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for key, check in self.checks.items():
            object.__setattr__(self, key, check(key, getattr(self, key)))

    # --- How it is written down ---------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the event as a segment of an events file; floats survive ``json`` exactly."""
        return {"event": self.name, **{key: getattr(self, key) for key in self.checks}}

    @classmethod
    def from_json(cls, segment: Mapping[str, Any]) -> Self:
        """Rebuild what ``to_json`` wrote; the keys of a run (count, phase, part) are left alone.

        Raises:
            BadInputError: With every mistake, one line each.
        """
        allowed = ["event", *cls.checks, cls.count_key, "phase", "part"]
        mistakes, values = [], {}
        for key in segment:
            if key not in allowed:
                hint = did_you_mean(str(key), allowed)
                mistakes.append(f"{cls.name} has no key {key!r}" + (f", {hint}" if hint else ""))
        for key in cls.checks:
            if key not in segment:
                mistakes.append(f"{cls.name} needs {key}")
                continue
            try:
                values[key] = cls.read(key, segment[key])
            except BadInputError as error:
                mistakes.append(error.message)
        if mistakes:
            raise BadInputError("\n".join(mistakes))
        return cls(**values)

    @classmethod
    def read(cls, key: str, raw: Any) -> Any:
        """Return the value of a field from what a file has for it."""
        return cls.checks[key](key, raw)

    # --- Its cost -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def sampling(self) -> str:
        """How records enter it: a key of ``SAMPLINGS``."""

    @abstractmethod
    def renyi(self, orders: Array) -> Array:
        """Return an upper bound on the Renyi divergence at each order, in both directions.

        Args:
            orders: Orders > 1, ascending, float64, shape (m,).
        Returns:
            Not negative, not falling in the order, float64, shape (m,); infinite where there is
            no bound.
        """

    def dp_event(self) -> Any:
        """Return the event as a ``dp_accounting.DpEvent``, or None where it has no such form.

        Accountant ``pld`` needs one that ``dp_accounting``'s ``PLDAccountant`` takes.
        """
        return None

    @property
    def is_private(self) -> bool:
        """False where it has no finite epsilon by design."""
        return True

    def pure_epsilon(self) -> float:
        """Return an epsilon at delta = 0; infinite if it has none."""
        return math.inf

    # --- What plans and forecasts ask; no epsilon depends on it ----------------------------------

    #: What of its output is released, where not all of it is: statements say so.
    released_part: ClassVar[str] = ""

    def expected_share(self) -> float:
        """Return the share of the records that is expected to enter it, in [0, 1]."""
        return 1.0

    def at_share(self, share: float) -> PrivacyEvent | None:
        """Return the same event with another expected share of the records; None: all enter it."""
        return None

    def relative_noise(self) -> float | None:
        """Return the standard deviation of its Gaussian noise over the sensitivity.

        That is as if all records entered; None where its noise is no Gaussian's.
        """
        variance = self.gaussian_variance()
        return None if variance is None else math.sqrt(variance)

    # --- What accountants may use to be tighter or faster; none of it is needed -----------------

    def simplified(self) -> PrivacyEvent | None:
        """Return an event that costs the same and is easier to compose; None if it is free."""
        return self

    def gaussian_variance(self) -> float | None:
        """Return (noise / sensitivity) squared where it is exactly one Gaussian mechanism.

        Such events compose exactly into one: 1 / variance adds up.
        """
        return None

    def sort_key(self) -> tuple[str, Any, Any]:
        """Return what events of a multiset are sorted by: sums are then the same in any order."""
        return (f"{type(self).__module__}.{type(self).__qualname__}", repr(self), 0.0)

    @classmethod
    def curves(cls, events: Sequence[Self], orders: Array) -> Array:
        """Return ``renyi`` of each event, shape (len(events), m)."""
        return np.array([event.renyi(orders) for event in events], dtype=np.float64)

    @classmethod
    def costs_at(cls, items: Sequence[tuple[Self, int]], order: float) -> list[float]:
        """Return terms whose sum bounds the divergence of all events at one order, any > 1.

        Args:
            items: Events with their counts; equal ones may repeat.
            order: Taken to be the next one of the grid: a curve does not fall.
        """
        return [count * _at_next_order(event, order) for event, count in items]

    @classmethod
    def coarsened(cls, items: Sequence[tuple[Self, int]]) -> Sequence[tuple[Self, int]]:
        """Return few different events that cost no less, for ``pld``, where there are many."""
        return items

    def privacy_loss(self, interval: float) -> Any:
        """Return the privacy loss distribution of one such event, an upper bound.

        Args:
            interval: Discretisation of the losses.
        Raises:
            BadInputError: ``dp_event`` has no such form, or is not private.
        """
        from dp_accounting import privacy_accountant
        from dp_accounting.pld import PLDAccountant

        accountant, form = PLDAccountant(value_discretization_interval=interval), self.dp_event()
        try:
            accountant.compose(form)
        except (privacy_accountant.UnsupportedEventError, TypeError) as error:
            raise no_pld_error(self.name, "it has no form that dp_accounting composes") from error
        if not math.isfinite(accountant.get_epsilon(0.5)):
            raise no_pld_error(self.name, "its form is not private, although its curve is finite")
        return accountant._pld  # no public name gives it; dp-accounting is pinned


def no_pld_error(name: str, because: str) -> BadInputError:
    """Return the error of an event that accountant ``pld`` cannot bound."""
    return BadInputError(
        f"accountant pld cannot bound {name}", because=because, fix="accountant rdp"
    )


def checked_pure(event: PrivacyEvent) -> float:
    """Return the pure epsilon of an event.

    Raises:
        BadInputError: It is negative, or not a number.
    """
    epsilon = event.pure_epsilon()
    if not epsilon >= 0:
        raise BadInputError(
            f"the pure epsilon of {event.name} is {epsilon!r}", fix="a number >= 0, or infinity"
        )
    return epsilon


def checked_variance(event: PrivacyEvent) -> float | None:
    """Return the variance of the Gaussian that an event is, or None.

    Raises:
        BadInputError: It is not above 0: it would lower the cost of others.
    """
    variance = event.gaussian_variance()
    if variance is not None and not variance > 0:
        raise BadInputError(
            f"the Gaussian variance of {event.name} is {variance!r}", fix="a number > 0, or None"
        )
    return variance


def checked_coarser(
    items: Sequence[tuple[PrivacyEvent, int]],
) -> Sequence[tuple[PrivacyEvent, int]]:
    """Return the events of one class as its ``coarsened`` gives them, none of them lost.

    Raises:
        BadInputError: They are fewer in all, or a count is not positive.
    """
    coarser = type(items[0][0]).coarsened(items)
    counts = [count for _, count in coarser]
    if any(count <= 0 for count in counts) or sum(counts) != sum(count for _, count in items):
        raise BadInputError(
            f"coarsened() of {items[0][0].name} loses events",
            fix="positive counts with the same sum",
        )
    return coarser


def class_flaw(kind: type[PrivacyEvent]) -> str:
    """Return why events of a class would not be the same again, read from a ledger; or nothing.

    Equality must see all that a cost may depend on, and JSON must hold it.
    """
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not (parameters.frozen and parameters.eq):
        return "its class is no frozen dataclass of its own, with eq"
    own: Sequence[dataclasses.Field[Any]] = dataclasses.fields(cast(Any, kind))
    if {field.name for field in own} != set(kind.checks):
        return "its fields are not the keys of its checks"
    if not all(field.compare for field in own):
        return "a field takes no part in comparisons"
    taken = {"event", "phase", "part", kind.count_key} & set(kind.checks)
    words = ", ".join(sorted(taken))
    return f"a field is called {words}, as a key of every segment is" if taken else ""


def checked_curves(events: Sequence[PrivacyEvent], orders: Array) -> Array:
    """Return the curves of events of one class, refused where they cannot be curves.

    Raises:
        BadInputError: A curve has another shape than the orders, or is negative somewhere.
    """
    curves = type(events[0]).curves(events, orders)
    if curves.shape != (len(events), len(orders)) or np.any(curves < 0):
        raise BadInputError(
            f"the Renyi curve of {events[0].name} is no curve",
            because=f"shape {curves.shape}, smallest value {curves.min(initial=math.inf):g}",
            fix=f"an event whose renyi(orders) gives {len(orders)} numbers >= 0",
        )
    return curves


@lru_cache(maxsize=4096)
def _at_next_order(event: PrivacyEvent, order: float) -> float:
    """Return an event's Renyi divergence at the next order of the grid."""
    orders = rdp.orders_at(rdp.level_of(order))
    return float(checked_curves([event], orders)[0][int(np.searchsorted(orders, order))])

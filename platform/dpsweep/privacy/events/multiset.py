"""The multiset of a plan's events, and the sum of their Renyi curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, PrivacyEvent, checked_curves
from dpsweep.privacy.events.plan import Plan

#: A plan as a multiset: (event, count), sorted. The order of a fixed plan has no cost.
Multiset = tuple[tuple[PrivacyEvent, int], ...]
_Item = TypeVar("_Item")


def multiset(plan: Plan) -> Multiset:
    """Return the plan's events with their counts, sorted; what costs nothing is left out.

    The two protected parts are not told apart: their sum bounds each of them.
    """
    counts: Counter[PrivacyEvent] = Counter()
    for run in plan.runs:
        if run.part == "public":
            continue
        event = run.event.simplified()
        if event is not None:
            counts[event] += run.count
    return in_order(counts.items())


def in_order(items: Iterable[tuple[PrivacyEvent, int]]) -> Multiset:
    """Return events with their counts, sorted."""
    return tuple(sorted(items, key=lambda item: item[0].sort_key()))


def event_curves(events: Sequence[PrivacyEvent], orders: Array = rdp.ORDERS) -> Array:
    """Return the Renyi curve of each event, float64, shape (len(events), len(orders)).

    Raises:
        BadInputError: What an event gives is no curve.
    """
    curves = np.empty((len(events), len(orders)))
    for places in by_class(events, range(len(events))):
        curves[places] = checked_curves([events[place] for place in places], orders)
    return curves


def by_class(events: Iterable[PrivacyEvent], items: Iterable[_Item]) -> list[list[_Item]]:
    """Return the items, one for each event, in groups of one class of events."""
    groups: dict[type[PrivacyEvent], list[_Item]] = {}
    for event, item in zip(events, items):
        groups.setdefault(type(event), []).append(item)
    return list(groups.values())


def plan_curve(events: Multiset, orders: Array = rdp.ORDERS) -> Array:
    """Return the sum of the events' Renyi curves, shape (len(orders),)."""
    if not events:
        return np.zeros(len(orders))
    counts = np.array([count for _, count in events], dtype=np.float64)
    return np.asarray((counts[:, None] * event_curves([e for e, _ in events], orders)).sum(axis=0))

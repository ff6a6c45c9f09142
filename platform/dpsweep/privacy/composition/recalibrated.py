"""Noise that another version has calibrated: a plan that differs by a trifle is run with it.

Calibration ends within a tolerance, so a version that computes an epsilon otherwise in its tenth
digit finds other noise in that digit. What a study has declared, or is bounded by, stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dpsweep.privacy.events.base import PrivacyEvent
from dpsweep.privacy.events.plan import EventRun, Part, Plan

#: How much noise of one calibration may differ from that of another, as a share of it.
TRIFLE = 1e-6
_NOISE = "noise_multiplier"
_MORE = (1e-9, 1e-8, 1e-7, TRIFLE)

_Key = tuple[Part, PrivacyEvent]


def as_recorded(plan: Plan, recorded: Iterable[_Key]) -> Plan:
    """Return a plan with the events on record in the place of those that differ by their noise.

    >>> from dpsweep.privacy.events import PoissonGaussian
    >>> old, new = (PoissonGaussian(noise, 0.1) for noise in (2.2318068538, 2.2318068532))
    >>> as_recorded(Plan((EventRun(new, 60),)), [("private", old)]).at(0).noise_multiplier
    2.2318068538

    Guarantees:
        Every event of the result that costs something is one on record, or the plan is the one
        that was given. No two different events become one. Nothing else of an event changes than
        its noise multiplier, by ``TRIFLE`` of it at most. That may be to less noise, so a plan has
        the price of the result.

    Args:
        plan: Of a configuration, as it is calibrated now.
        recorded: Parts and events on them, as they cost (``PrivacyEvent.simplified``).
    """
    own = {(run.part, run.event): key for run in plan.runs if (key := _cost(run)) is not None}
    events = set(recorded)
    if events.issuperset(own.values()):
        return plan
    noises = _noises(events)
    becomes = {key: _nearest(key, events, noises) for key in set(own.values())}
    if None in becomes.values() or len(set(becomes.values())) < len(becomes):
        return plan
    moved = {}
    for (part, event), key in own.items():
        goal = becomes[key]
        assert goal is not None
        moved[part, event] = event if goal == key else _with_noise(event, _noise_of(goal[1]))
        if moved[part, event].simplified() != goal[1]:
            return plan
    runs = (replace(r, event=moved.get((r.part, r.event), r.event)) for r in plan.runs)
    return Plan(tuple(runs))


def covered(plan: Plan, covers: Callable[[Plan], bool]) -> Plan | None:
    """Return a plan that a bound covers: the same one, or with a trifle more noise; None: none.

    Guarantees:
        No event of the result has less noise than that of the plan, so none costs more.

    Args:
        plan: Of a configuration, as it is calibrated now.
        covers: Says whether a plan stays within the bound on record.
    """
    louder = (Plan(tuple(_louder(run, 1 + more) for run in plan.runs)) for more in _MORE)
    return plan if covers(plan) else next(filter(covers, louder), None)


def other_noise(
    planned: Iterable[_Key], recorded: Iterable[_Key]
) -> tuple[PrivacyEvent, PrivacyEvent] | None:
    """Return an event that is planned and none on record, and one that is only on record.

    They are as near to each other as there are any. None where one of the two has all events of
    the other: such are more trials, or fewer, of a grid.
    """
    ours, theirs = set(planned), set(recorded)
    new, old = ours - theirs, theirs - ours
    if not new or not old:
        return None
    pairs = [(here[1], there[1]) for here in new for there in old if here[0] == there[0]]
    if not pairs:
        return min(new, key=repr)[1], min(old, key=repr)[1]
    return min(pairs, key=lambda pair: (_distance(*pair), repr(pair)))


def _cost(run: EventRun) -> _Key | None:
    """Return the part and what a run's event costs as; None for what is free."""
    event = None if run.part == "public" else run.event.simplified()
    return None if event is None else (run.part, event)


def _noises(events: Iterable[_Key]) -> Mapping[_Key, Sequence[float]]:
    """Return the noise multipliers of events that are alike but for these."""
    noises: dict[_Key, list[float]] = {}
    for part, event in events:
        if _NOISE in event.checks:
            noises.setdefault((part, _with_noise(event, 1.0)), []).append(_noise_of(event))
    return noises


def _nearest(key: _Key, events: set[_Key], noises: Mapping[_Key, Sequence[float]]) -> _Key | None:
    """Return an event itself if it is on record, or the nearest one there; None: none is near."""
    part, event = key
    if key in events or _NOISE not in event.checks:
        return key if key in events else None
    noise = _noise_of(event)
    alike = noises.get((part, _with_noise(event, 1.0)), ())
    chosen = min(alike, key=lambda other: abs(other - noise), default=0.0)
    if not 0 < abs(chosen - noise) <= TRIFLE * min(chosen, noise):
        return None
    return part, _with_noise(event, chosen)


def _distance(here: PrivacyEvent, there: PrivacyEvent) -> float:
    if _NOISE not in here.checks or _NOISE not in there.checks:
        return float("inf")
    return abs(_noise_of(here) - _noise_of(there))


def _noise_of(event: PrivacyEvent) -> float:
    return float(getattr(event, _NOISE))


def _with_noise(event: PrivacyEvent, noise: float) -> PrivacyEvent:
    return cast(PrivacyEvent, replace(cast(Any, event), **{_NOISE: noise}))


def _louder(run: EventRun, factor: float) -> EventRun:
    """Return a run with so many times its noise; what has none, and what is free, stays."""
    if run.part == "public" or _NOISE not in run.event.checks:
        return run
    return replace(run, event=_with_noise(run.event, _noise_of(run.event) * factor))

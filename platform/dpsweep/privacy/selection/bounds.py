"""Bounds on every trial of a selection, and the price of the best trial by each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError, LedgerError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import by_part, plan_loss
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.losses import Profile, profile_of, rounding_of
from dpsweep.privacy.events.multiset import Multiset
from dpsweep.privacy.events.repeat_and_select import selected_profile
from dpsweep.privacy.orders import FILLED_ORDERS
from dpsweep.privacy.selection.curves import (
    curves_of,
    envelope,
    is_under,
    orders_of,
    selection_epsilon,
)
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.terms import AccountantName

Array = NDArray[np.float64]

# A profile may differ in its last digits with what it was computed together with.
_ROUND_UP = 1.0 + 1e-9
_STEP, _LARGEST = 0.004, 300.0
#: Epsilons at which profiles are kept, float64 (m,): a step apart up to 1, then that share.
EPSILONS: Array = np.concatenate(
    [
        np.arange(0.0, 1.0, _STEP),
        np.exp(np.arange(0.0, math.log(_LARGEST), _STEP)),
    ]
)


class TrialBound(Protocol):
    """What no trial of a selection exceeds, whatever its configuration.

    It must bound more than an epsilon at one delta: two plans of equal epsilon differ elsewhere.
    """

    @property
    def accountant(self) -> AccountantName:
        """The accountant by which the best trial is priced."""

    def covers(self, plan: Plan) -> bool:
        """Say whether a plan stays within it, in every part of the records."""

    def epsilon(self, *, delta: float) -> float:
        """Return the epsilon of one trial that is as dear as it may be."""

    def selected(self, selection: Selection, *, delta: float) -> float:
        """Return the epsilon of releasing the best of K such trials, rounded up.

        Args:
            selection: Distribution of K.
            delta: In (0, 1).
        """

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, for ``read_bound``."""


@dataclass(frozen=True, eq=False)
class RenyiBound:
    """A Renyi curve over ``orders_of`` it: Papernot and Steinke 2022 (``selection_epsilon``)."""

    curve: Array
    accountant: AccountantName = "rdp"

    def covers(self, plan: Plan) -> bool:
        """Compare order by order."""
        return is_under(plan, self.curve)

    def epsilon(self, *, delta: float) -> float:
        """Return what the curve comes to."""
        return float(rdp.epsilons(self.curve[None, :], orders_of(self.curve), delta)[0][0])

    def selected(self, selection: Selection, *, delta: float) -> float:
        """See ``selection_epsilon``."""
        return selection_epsilon(self.curve, selection, delta=delta)

    def to_json(self) -> dict[str, Any]:
        """Return the curve; None stands for infinity."""
        return {"curve": [v if math.isfinite(v) else None for v in self.curve.tolist()]}


@dataclass(frozen=True, eq=False)
class ProfileBound:
    """A privacy profile, for the theorem of ``selected_profile``, which is tighter.

    Guarantees:
        The best trial by an order that was fixed before, released with its model and score, is
        (epsilon, delta)-DP under the terms of ``selection_epsilon``: K drawn once without looking
        at private data, independent trials from one fixed distribution, nothing else released. A
        trial's plan is fixed before it starts; one that ends early costs all of it.

    Attributes:
        deltas: Upper bounds on delta at the first of ``EPSILONS``, float64 (n,), not rising. In
            between, profiles lie below the chords in exp(epsilon), being convex there, and so does
            their maximum; beyond the last, below the last.
    """

    deltas: Array
    accountant: AccountantName = "pld"

    def profile(self, epsilons: Array) -> Array:
        """Return an upper bound on delta at any epsilon; see ``profile_of`` for those below 0."""
        away = np.abs(epsilons)
        places = np.exp(np.minimum(away, _LARGEST))
        at = np.interp(places, np.exp(EPSILONS[: len(self.deltas)]), self.deltas)
        return np.where(epsilons >= 0, at, -np.expm1(-away) + np.exp(-away) * at)

    def covers(self, plan: Plan) -> bool:
        """Compare at all of ``EPSILONS``, with what rounding may have taken from the plan."""
        longer = np.full(len(EPSILONS), self.deltas[-1])
        longer[: len(self.deltas)] = self.deltas
        return bool(np.all(deltas_of(plan) + _rounding_of(plan) <= longer))

    def epsilon(self, *, delta: float) -> float:
        """Return the smallest epsilon at which it is at most ``delta``."""
        return _smallest_epsilon(self.profile, delta, EPSILONS[-1])

    def selected(self, selection: Selection, *, delta: float) -> float:
        """See ``selected_profile``."""
        delta = validate.in_unit_interval("delta", delta)
        best = selected_profile(self.profile, selection.mean, selection.shape)
        end = EPSILONS[-1] * (2 + (0 if selection.shape == "poisson" else float(selection.shape)))
        return _smallest_epsilon(best, delta, end)

    def to_json(self) -> dict[str, Any]:
        """Return the profile, with the step of its grid."""
        return {"profile": self.deltas.tolist(), "step": _STEP}


def _smallest_epsilon(profile: Profile, delta: float, end: float) -> float:
    """Return the smallest epsilon with a profile of at most delta, from above."""

    def is_enough(epsilon: float) -> bool:
        return float(profile(np.array([epsilon]))[0]) <= delta

    if not is_enough(end):
        return math.inf
    if is_enough(0.0):
        return 0.0
    low, high = 0.0, end
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return float(high)


def bound_of(
    plans: Iterable[Plan], accountant: AccountantName, *, is_filled: bool = False
) -> TrialBound:
    """Return a bound that every one of these plans keeps, in each part of the records.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> trial = Plan((EventRun(PoissonGaussian(1.51327, 0.01), 1000),))
    >>> [round(bound_of([trial], by).selected(Selection(10, 1), delta=1e-5), 2)
    ...  for by in ("rdp", "pld")]
    [2.11, 1.47]

    Args:
        plans: At least one.
        accountant: ``rdp`` or ``pld``.
        is_filled: Keep a Renyi curve at more orders than one of dear plans needs.
    Raises:
        BadInputError: There is no plan, or ``pld`` cannot bound one of its events.
    """
    if accountant == "rdp":
        return RenyiBound(envelope(plans, is_filled=is_filled))
    # Twice: a plan that is compared with the bound, be it one of these, has what rounding may have
    # taken from it added.
    profiles = [deltas_of(plan) + 2 * _rounding_of(plan) for plan in plans]
    if not profiles:
        raise BadInputError("the most expensive plan of no plans is unknown")
    deltas = np.minimum(np.max(profiles, axis=0) * _ROUND_UP, 1.0)
    return ProfileBound(deltas[: int(np.argmin(deltas)) + 1])


def read_bound(record: Mapping[str, Any]) -> TrialBound:
    """Return the bound that ``to_json`` wrote.

    Raises:
        LedgerError: There is none, or one of another grid.
    """
    if "profile" in record:
        deltas = np.array(record["profile"], dtype=np.float64)
        is_whole = record.get("step") == _STEP and 0 < len(deltas) <= len(EPSILONS)
        if is_whole and deltas[0] <= 1 and deltas[-1] >= 0 and np.all(np.diff(deltas) <= 0):
            return ProfileBound(deltas)
    elif "curve" in record:
        curve = np.array([math.inf if v is None else v for v in record["curve"]], dtype=np.float64)
        if len(curve) in (len(rdp.ORDERS), len(FILLED_ORDERS)):
            return RenyiBound(curve)
    raise LedgerError(
        "the record of a selection has no bound that this version knows",
        because="it was edited, or a later version has written it",
        fix="restore the ledger, or continue the study with the version that began it",
    )


def dearest(plans: Sequence[Plan], accountant: AccountantName) -> list[int]:
    """Return which plans are the dearest somewhere: at an order, or at an epsilon."""
    if accountant == "rdp":
        costs = curves_of(plans)
    else:
        costs = np.array([deltas_of(plan) for plan in plans])
    return sorted(set(np.argmax(costs, axis=0).tolist()))


def deltas_of(plan: Plan) -> Array:
    """Return the profile of a plan at ``EPSILONS``, float64 (m,), the larger of its parts.

    Without what rounding may have taken from it, which ``bound_of`` adds.
    """
    return np.asarray(np.max([_deltas(events) for events in by_part(plan).values()], axis=0))


def _rounding_of(plan: Plan) -> float:
    return max(rounding_of(events) for events in by_part(plan).values())


@lru_cache(maxsize=256)
def _deltas(events: Multiset) -> Array:
    loss = plan_loss(events)
    if loss is None:
        return np.zeros(len(EPSILONS))
    return np.minimum.accumulate(np.clip(profile_of(loss)(EPSILONS), 0.0, 1.0))

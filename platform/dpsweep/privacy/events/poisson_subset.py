"""Events on a secret Poisson subset of the records: a search on a part of them, say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, Check, PrivacyEvent
from dpsweep.privacy.events.losses import (
    Profile,
    composed_loss,
    loss_of_profile,
    privacy_loss_of_nothing,
    profile_of_plan,
)
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.events.plan import Plan, nested_plan, to_dp_event

_FINE = 1e-4
#: Whole orders at which curves are known: all up to 64, then 12 in each octave.
WHOLE_ORDERS: Array = np.unique(
    [*range(2, 65), *np.round(64 * 2 ** (np.arange(12 * 9 + 1) / 12))]
).astype(np.float64)


def subset_profile(once: Profile, rate: float) -> Profile:
    """Return the privacy profile of a mechanism, of profile ``once``, on a secret Poisson subset.

    Theorem (Balle, Barthe and Gaboardi 2018, https://arxiv.org/abs/1807.01647). With p the rate, it
    is at most p * once(e) at the epsilon log(1 + p (exp(e) - 1)), for all e >= 0.

    Proof. Let U be the outputs over all subsets of the others, and V those with the record added
    to each subset. Sums of such pairs keep the profile: P(S) - exp(e) P'(S) <= once(e) for sets S
    and both orders of U and V. Without the record the outputs are U, with it (1 - p) U + p V. Let
    t = 1 + p (exp(e) - 1). The first direction is (1 - p) U + p V - t U = p (V - exp(e) U), which
    has at most p * once(e). The second is U - t ((1 - p) U + p V) = c (U - t p / c V) with
    c = 1 - t (1 - p) = p (1 - (1 - p) (exp(e) - 1)): nothing if c <= 0. Otherwise c <= p, and
    t p / c >= exp(e), as (1 + y) (1 - (1 - p) y) <= 1 + p y; so it has at most p * once(e), too.

    Args:
        once: Of the mechanism on any records, the larger of both directions.
        rate: p in (0, 1].
    Returns:
        For epsilons >= 0.
    """

    def delta(epsilons: Array) -> Array:
        return np.asarray(rate * np.minimum(once(_epsilon_within(epsilons, rate)), 1.0))

    return delta


def _epsilon_within(epsilons: Array, rate: float) -> Array:
    """Return e with log(1 + p (exp(e) - 1)) equal to each epsilon >= 0, or a little less than that;
    it never overflows.
    """
    below = np.log1p(np.expm1(np.minimum(epsilons, 30.0)) / rate)
    return np.where(epsilons < 30, below, epsilons - math.log(rate) - 1e-12)


def subset_rdp(once: Array, rate: float) -> Array:
    """Return the Renyi curve of a mechanism, of curve ``once``, on a secret Poisson subset.

    Theorem. With p the rate and q = 1 - p, at whole orders a >= 2 it is at most log(A) / (a - 1),

        A = sum over k = 0 .. a of C(a, k) q^(a - k) p^k exp((k - 1) once(k)),   once(0 or 1) = 0

    That is the sum of Zhu and Wang 2019 (https://proceedings.mlr.press/v97/zhu19c.html), without
    the factor 3 that they have from k = 3 on for mechanisms in general.

    Proof. Let U and V be as in ``subset_profile``, x = V / U. A moment of mixtures is at most the
    largest of those that are mixed: E_U[x^k] and E_V[x^-k] are at most exp((k - 1) once(k)). So
    F = E_U[(q + p x)^a], which is the first direction, and G = E_V[(q + p / x)^a] are at most A.
    The second direction is E_U[(q + p x)^(1 - a)]. Let n = a - 2, w = 3 q / (3 + 2 n p), and

        f(x) = w (q + p x)^a + (1 - w) x (q + p / x)^a - (q + p x)^(1 - a)

    Its second derivative is a (a - 1) p^2 times w (q + p x)^n + (1 - w) x^-3 (q + p / x)^n less
    (q + p x)^(-n - 3). The first two are at least their weighted geometric mean; the logarithm of
    that over the third is a convex function of log(x), which is 0 at x = 1, and so is its
    derivative there, by the choice of w. So f is convex, and E_U[f(x)] >= f(E_U[x]) = f(1) = 0: the
    second direction is at most w F + (1 - w) G, which is at most A.

    Between known orders (k - 1) once(k) lies below its chords, being convex in k.

    Args:
        once: At the first of ``WHOLE_ORDERS``, finite, shape (m,); it bounds both directions.
        rate: p in (0, 1).
    Returns:
        The bound at the same orders, rounded up, shape (m,).
    """
    orders = WHOLE_ORDERS[: len(once)]
    logs = np.zeros(len(once))
    every = np.arange(2, orders.max(initial=1) + 1)
    gains = np.interp(every, orders, (orders - 1) * once) if len(once) else every
    with np.errstate(divide="ignore"):
        log_gains = gains + np.log(-np.expm1(-gains))
    log_rates = every * math.log(rate) - scipy.special.gammaln(every + 1)
    for place, order in enumerate(orders):
        # The first two terms of A and all those of an empty cost add up to 1.
        k = every[: int(order) - 1]
        others = (order - k) * math.log1p(-rate) - scipy.special.gammaln(order - k + 1)
        terms = scipy.special.gammaln(order + 1) + others + (log_rates + log_gains)[: len(k)]
        logs[place] = np.logaddexp(0.0, scipy.special.logsumexp(terms))
    curve = logs / (orders - 1) * rdp.ROUND_UP
    # A Renyi curve does not fall, so a bound at a higher order holds at the lower ones too.
    return np.asarray(np.minimum.accumulate(curve[::-1])[::-1])


def between_orders(curve: Array, orders: Array, *, at: Array = WHOLE_ORDERS) -> Array:
    """Return a bound at any orders > 1 from one at the first orders of a grid.

    (a - 1) times a Renyi divergence is convex in the order a, and 0 at order 1: it lies below its
    chords. Beyond the last order nothing is known.

    Args:
        curve: Finite, at as many orders of the grid as it is long.
        orders: Where it is asked.
        at: The grid, rising, above 1.
    """
    grid = at[: len(curve)]
    places, logs = np.append(1.0, grid), np.append(0.0, (grid - 1) * curve)
    return np.asarray(np.interp(orders, places, logs, right=np.inf) / (orders - 1))


def _rate(name: str, value: Any) -> float:
    return validate.in_unit_interval(name, value, one=True)


def _plan(name: str, value: Any) -> Plan:
    plan = nested_plan(name, value, PoissonSubset.name)
    if not plan.runs:
        raise BadInputError(f"{name} must have at least one event")
    return plan


@dataclass(frozen=True)
class PoissonSubset(PrivacyEvent):
    """Events on a secret random subset, which each record enters with probability ``rate``.

    Its privacy loss distribution is that of ``subset_profile``, its Renyi curve that of
    ``subset_rdp``; neither is above that of the same events on all records.

    Guarantees:
        Both hold if each record enters independently of the others and of all that was released
        before; if the subset is drawn anew for each of these events and is released in no way, its
        size included; and if ``of`` bounds what runs on it for every subset: sample rates and
        numbers of records in it are declared, not counted. What shares a subset is one event, with
        all of it in ``of``.

    Attributes:
        rate: Probability in (0, 1] that one record enters.
        of: Plan of what runs on the subset, at least one event; an event may be a selection. They
            are about one part of the records, named by the run of this event.
    """

    rate: float
    of: Plan

    name: ClassVar[str] = "poisson_subset"
    released_part: ClassVar[str] = "its outputs but not which records it has drawn"
    checks: ClassVar[Mapping[str, Check]] = {"rate": _rate, "of": _plan}

    def to_json(self) -> dict[str, Any]:
        """Return it as a segment, its events as segments of their own."""
        return {**super().to_json(), "of": self.of.to_json()}

    @classmethod
    def read(cls, key: str, raw: Any) -> Any:
        """Return a field; its events from their segments."""
        return super().read(key, Plan.read(raw, "of: ") if key == "of" else raw)

    @property
    def sampling(self) -> str:
        """A Poisson sample; at rate 1 as its events say."""
        return "poisson" if self.rate < 1 else self.of.sampling

    @property
    def is_private(self) -> bool:
        """As its events."""
        return self.of.is_private

    def renyi(self, orders: Array) -> Array:
        """Return the curve of ``subset_rdp``, and not more than that of its events."""
        once = plan_curve(multiset(self.of), orders)
        if self.rate == 1:
            return once
        num_orders = int(np.searchsorted(WHOLE_ORDERS, max(orders[-1], rdp.ORDERS[-1]))) + 1
        curve = _at_whole_orders(self, num_orders)
        return np.asarray(np.minimum(once, between_orders(curve, orders)))

    def privacy_loss(self, interval: float) -> Any:
        """Return the distribution of ``subset_profile``, for the plan ``of``."""
        once = multiset(self.of)
        if not once:
            return privacy_loss_of_nothing(interval)
        if self.rate == 1:
            return composed_loss(once, interval)
        # Where an epsilon is small, that of the events is 1 / rate times as large.
        finer = min(max(interval / 10, _FINE), interval / self.rate)
        profile = profile_of_plan(once, finer)
        return loss_of_profile(subset_profile(profile, self.rate), interval)

    def dp_event(self) -> Any:
        """Return it as a ``PoissonSampledDpEvent``; few of them have a cost in dp_accounting."""
        import dp_accounting

        return dp_accounting.PoissonSampledDpEvent(self.rate, to_dp_event(self.of))

    def expected_share(self) -> float:
        """Return the rate."""
        return self.rate

    def at_share(self, share: float) -> PrivacyEvent | None:
        """Return it at another rate."""
        return PoissonSubset(share, self.of)

    def sort_key(self) -> tuple[str, Any, Any]:
        """Sort by all fields."""
        return ("PoissonSubset", repr(self), 0.0)


@lru_cache(maxsize=256)
def _at_whole_orders(event: PoissonSubset, num_orders: int) -> Array:
    """Return the curve at the first of ``WHOLE_ORDERS``, as far as that of the events is finite."""
    once = plan_curve(multiset(event.of), WHOLE_ORDERS[:num_orders])
    return subset_rdp(once[: int(np.isfinite(once).sum())], event.rate)

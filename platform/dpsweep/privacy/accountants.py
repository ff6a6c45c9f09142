"""Accountants: how much a plan costs, as an upper bound on epsilon at a given delta."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import scipy

from dpsweep.foundation import validate
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import (
    checked_pure,
    no_pld_error,
)
from dpsweep.privacy.events.losses import (
    composed_loss,
    loss_without_bound,
    parted,
    rounding_of,
)
from dpsweep.privacy.events.multiset import Multiset, multiset, plan_curve
from dpsweep.privacy.events.plan import CHARGED_PARTS, Plan
from dpsweep.privacy.orders import is_sparse, refined
from dpsweep.privacy.terms import ACCOUNTANTS, AccountantName


class Accountant(Protocol):
    """Bounds the cost of a fixed plan."""

    name: AccountantName

    def epsilon(self, plan: Plan, *, delta: float) -> float:
        """Return an upper bound on the plan's epsilon at ``delta``; infinite if there is none."""


class RdpAccountant:
    """Renyi differential privacy: fast, about 15% above ``pld``."""

    name: AccountantName = "rdp"

    def epsilon(self, plan: Plan, *, delta: float) -> float:
        """Return the Renyi bound on the plan's epsilon, over all orders of ``rdp.ORDERS``."""
        delta = validate.in_unit_interval("delta", delta)
        return max(epsilon_and_order(events, delta)[0] for events in by_part(plan).values())


class PldAccountant:
    """Privacy loss distributions: tight, for fixed plans only, and slower.

    Guarantees:
        Valid only for a plan that was fixed before the data was seen. A run that is stopped, or
        whose noise is chosen, by what it saw of the private data may be bounded by a Renyi filter
        but not by this accountant (https://arxiv.org/abs/2602.06756): never use it as one.
    """

    name: AccountantName = "pld"

    def epsilon(self, plan: Plan, *, delta: float) -> float:
        """Return the smaller of the PLD and the Renyi bound; both hold for a fixed plan."""
        delta = validate.in_unit_interval("delta", delta)
        return max(_pld_epsilon(events, delta) for events in by_part(plan).values())


def make_accountant(name: str) -> Accountant:
    """Return the accountant of that name: ``rdp`` or ``pld``."""
    validate.one_of("accountant", name, ACCOUNTANTS)
    return RdpAccountant() if name == "rdp" else PldAccountant()


def epsilon_of(plan: Plan, *, delta: float, accountant: AccountantName = "rdp") -> float:
    """Return an upper bound on the epsilon of a plan at ``delta``.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> plan = Plan((EventRun(PoissonGaussian(1.0, 0.01), 1000),))
    >>> round(epsilon_of(plan, delta=1e-5), 4)
    2.1014
    >>> round(epsilon_of(plan, delta=1e-5, accountant="pld"), 4)
    1.8282

    Guarantees:
        Add-or-remove-one, Poisson sampling, fixed plan. Depends on the events and their counts
        alone, so any order of the same events has bitwise the same epsilon, and asking has no
        side effect. Private and validation records are disjoint parts of the data, split without
        looking at it: a record is in one of them, and what the other part's events released is
        post-processing for it, so the plan costs the larger of the two compositions and not their
        sum. Events on public records cost nothing.

        Under ``rdp``: the conversion of Canonne, Kamath and Steinke 2020 over a fixed grid of
        orders; Laplace events alone also by their pure sum. Under ``pld``: dp_accounting's
        pessimistic estimate; Gaussians over all records alone by the exact formula of Balle and
        Wang 2018; a plan with more than 256 different Poisson-sampled Gaussians has its noise
        multipliers rounded down onto a logarithmic grid, which over-counts by about half a percent;
        repeat-and-select by the privacy profile of its best run (``selected_profile``), events on
        a secret subset by theirs (``subset_profile``).

        Not covered: shuffled batches, replace-one neighbors, a split that depends on the data or
        is drawn again, and (``pld``) adaptive stops.

    Args:
        plan: The events; an empty plan costs 0.
        delta: In (0, 1).
        accountant: ``rdp`` or ``pld``.
    Returns:
        Epsilon >= 0; infinite where an event has none (no noise, ``NonPrivate``).
    Raises:
        BadInputError: ``pld`` is asked for an event that it cannot bound.
    """
    return make_accountant(accountant).epsilon(plan, delta=delta)


def multiset_epsilon(events: Multiset, *, delta: float, accountant: AccountantName) -> float:
    """Return an upper bound on the epsilon of events on one part of the records.

    Raises:
        BadInputError: ``pld`` is asked for an event that it cannot bound.
    """
    delta = validate.in_unit_interval("delta", delta)
    if accountant == "rdp":
        return epsilon_and_order(events, delta)[0]
    return _pld_epsilon(events, delta)


def by_part(plan: Plan) -> dict[str, Multiset]:
    """Return the events on each part of the protected records, both keys always present."""
    return {part: multiset(plan.part(part)) for part in CHARGED_PARTS}


# --- Renyi ----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def epsilon_and_order(events: Multiset, delta: float) -> tuple[float, float]:
    """Return the Renyi bound on epsilon and the order that gives it.

    The grid is extended upwards while its last order is the best one, and filled in where the best
    one is among its last, far apart ones.
    """
    if not events:
        return 0.0, math.inf
    for level in range(len(rdp.HIGH_ORDERS) + 1):
        orders = rdp.orders_at(level)
        bounds, best = rdp.epsilons(plan_curve(events, orders)[None, :], orders, delta)
        epsilon, order = float(bounds[0]), float(orders[best[0]])
        if best[0] < len(orders) - 1 or epsilon == 0.0:
            break
    if epsilon > 0 and is_sparse(order):
        epsilons, best_orders = refined(
            lambda rows, orders: plan_curve(events, orders)[None, :],
            np.array([epsilon]),
            np.array([order]),
            delta,
        )
        epsilon, order = float(epsilons[0]), float(best_orders[0])
    pure = math.fsum(count * checked_pure(event) for event, count in events)
    return min(epsilon, pure), order


# --- Privacy loss distributions -------------------------------------------------------------

_FEW = 40  # up to this many different events are discretised ten times finer
_MOST_HALVINGS, _MOVES_NOTHING = 4, 1e-3  # of a discretisation that is shown to be fine enough
_LARGEST_PLD_EPSILON = 1e4  # above, epsilon says as little by either, and Renyi's is much cheaper
_SMALLEST_DELTA, _SMALLEST_MU = 1e-100, 1e-14  # below, the difference of its terms is lost


def analytic_gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of Gaussian noise (mu = sensitivity / standard deviation).

    Solves delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018,
    https://arxiv.org/abs/1805.06530, theorem 8), rounded up. Composition adds mu^2.

    >>> round(analytic_gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    mu = validate.non_negative("mu", mu)
    delta = validate.in_unit_interval("delta", delta)
    log_delta = math.log(delta)

    def log_delta_of(epsilon: float) -> float:
        top = float(scipy.special.log_ndtr(mu / 2 - epsilon / mu))
        bottom = epsilon + float(scipy.special.log_ndtr(-mu / 2 - epsilon / mu))
        # Cancels to nothing far out only, where the first term is tiny itself.
        return top + math.log(max(-math.expm1(min(bottom - top, 0.0)), 1e-300))

    is_lost = mu < _SMALLEST_MU or (delta < _SMALLEST_DELTA and mu < 1e-3)
    if mu == 0 or (
        math.erf(mu / math.sqrt(8)) <= delta if is_lost else log_delta_of(0.0) <= log_delta
    ):
        return 0.0
    # At this epsilon the first term alone is below delta.
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * log_delta) + 1e-12
    if is_lost:
        return high
    while log_delta_of(high) > log_delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if log_delta_of(middle) > log_delta else (low, middle)
    # The difference of two normal probabilities loses digits where mu is small.
    return high * (1 + 1e-12 + 4e-15 / mu)


def _interval(epsilon: float, num_distributions: int) -> float:
    """Return the discretisation: a power of ten below 1/5000 of epsilon (1/500 for many).

    Of events whose epsilon is 0 it is .001: their losses are rare, and may be as large as any.
    Powers of ten, so that a part of a plan is never discretised more coarsely than the whole.
    """
    wanted = epsilon * (2e-4 if num_distributions <= _FEW else 2e-3)
    return float(10.0 ** max(-5, math.floor(math.log10(wanted)))) if wanted > 0 else 1e-3


@lru_cache(maxsize=1024)
def _pld_epsilon(events: Multiset, delta: float) -> float:
    """Return the smaller of the pessimistic PLD estimate and the Renyi bound."""
    refuse_no_pld(events)
    renyi = epsilon_and_order(events, delta)[0]
    if renyi == 0 or renyi > _LARGEST_PLD_EPSILON:
        return renyi
    precision, rest = parted(events)
    if not rest:
        return min(analytic_gaussian_epsilon(math.sqrt(precision), delta), renyi)
    safe = delta - rounding_of(events)
    if safe <= 0:
        return renyi
    return min(_epsilon_at(_loss(events, renyi), safe), renyi)


def _epsilon_at(loss: Any, delta: float) -> float:
    """Return the epsilon of a distribution; the library walks over its losses one by one."""
    if loss.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    return float(loss.get_epsilon_for_delta(delta))


@lru_cache(maxsize=1024)
def fine_pld_epsilon(events: Multiset, delta: float) -> tuple[float, float]:
    """Return the PLD bound on epsilon at a discretisation that was seen to be fine enough.

    Any discretisation bounds epsilon from above; many events with tiny losses are overcharged by a
    coarse one. So it is halved until that moves epsilon by less than 1 in 1000, four times at most.

    Returns:
        Epsilon, the smaller of this bound and Renyi's, and the discretisation; 0 where none was
        needed.
    """
    refuse_no_pld(events)
    renyi = epsilon_and_order(events, delta)[0]
    if renyi == 0 or renyi > _LARGEST_PLD_EPSILON:
        return renyi, 0.0
    precision, rest = parted(events)
    if not rest:
        return min(analytic_gaussian_epsilon(math.sqrt(precision), delta), renyi), 0.0
    interval = _interval(renyi, len(rest) + (precision > 0))
    safe = delta - rounding_of(events)
    if safe <= 0:
        return renyi, interval
    epsilon = _epsilon_at(composed_loss(events, interval), safe)
    for _ in range(_MOST_HALVINGS):
        if epsilon == 0:
            break
        interval /= 2
        before = epsilon
        epsilon = min(before, _epsilon_at(composed_loss(events, interval), safe))
        if before - epsilon < _MOVES_NOTHING * epsilon:
            break
    return min(epsilon, renyi), interval


#: Delta at which a plan's epsilon decides how finely its losses are discretised.
_TYPICAL_DELTA = 1e-6


def plan_loss(events: Multiset) -> Any:
    """Return the privacy loss distribution of a fixed plan's events, an upper bound.

    None where there are none, or all of them cost nothing at any delta. Epsilon 0 at one delta is
    not that: a millionth of delta in each of a million trials is a sure loss of the best of them.

    Raises:
        BadInputError: An event has none.
    """
    refuse_no_pld(events)
    if not plan_curve(events, rdp.ORDERS).any():
        return None
    renyi = epsilon_and_order(events, _TYPICAL_DELTA)[0]
    if renyi > _LARGEST_PLD_EPSILON:
        return loss_without_bound()
    return _loss(events, renyi)


def _loss(events: Multiset, renyi: float) -> Any:
    """Return their distribution, discretised as finely as their Renyi bound on epsilon asks for."""
    precision, rest = parted(events)
    return composed_loss(events, _interval(renyi, len(rest) + (precision > 0)))


def refuse_no_pld(events: Multiset) -> None:
    """Refuse events that privacy loss distributions do not bound.

    Raises:
        BadInputError: There is one.
    """
    for event, _ in events:
        if event.no_pld is not None:
            raise no_pld_error(event.name, event.no_pld)

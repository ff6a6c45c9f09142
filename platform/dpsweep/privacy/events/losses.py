"""Privacy loss distributions of many events, and of what is known by its privacy profile alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dpsweep.privacy.events.base import (
    Array,
    PrivacyEvent,
    checked_coarser,
    checked_variance,
    no_pld_error,
)
from dpsweep.privacy.events.convolution import composed
from dpsweep.privacy.events.gaussian import Gaussian
from dpsweep.privacy.events.multiset import Multiset, by_class, in_order

#: Epsilon -> an upper bound on delta, in both directions; epsilons may be negative.
Profile = Callable[[Array], Array]
#: What is left of a profile beyond its grid is counted as lost for good.
_TAIL = 1e-18
#: How far a delta is off for each event that is convolved, at most; mostly a tenth of it.
_ROUNDING = 1e-15
#: A profile that does not fall any more below this delta is taken to have ended.
_LOST = 1e-6
#: Beyond this epsilon a profile is not put on a grid, and everything counts as lost.
_LARGEST = 300.0


def rounded_down(events: Multiset) -> Multiset:
    """Return fewer different events that cost no less, where there are many of a class."""
    groups = by_class((event for event, _ in events), events)
    return in_order(item for group in groups for item in checked_coarser(group))


def composed_loss(events: Multiset, interval: float) -> Any:
    """Return the privacy loss distribution of a fixed plan's events together, an upper bound.

    Gaussians over all records become one, exactly, before anything is discretised.

    Args:
        events: At least one.
        interval: Discretisation of the losses.
    Raises:
        BadInputError: An event has no such distribution.
    """
    precision, rest = parted(events)
    if precision > 0:
        rest = (*rest, (Gaussian(1 / math.sqrt(precision)), 1))
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    steps = [(_one_step(event, interval), count) for event, count in rest]
    remove = composed([(step._pmf_remove, count) for step, count in steps], interval)
    if all(step._symmetric for step, _ in steps):
        return PrivacyLossDistribution(remove)
    add = composed([(step._pmf_add, count) for step, count in steps], interval)
    return PrivacyLossDistribution(remove, add)


def rounding_of(events: Multiset) -> float:
    """Return what rounding may take from a delta of these events together.

    A fast Fourier transform is off by about 1e-16 of the largest value for each event, whatever
    the size of a value: of a small delta nothing is left.
    """
    return _ROUNDING * (1 + sum(count for _, count in events)) if events else 0.0


def profile_of_plan(events: Multiset, interval: float) -> Profile:
    """Return the privacy profile of a fixed plan's events together, an upper bound.

    Args:
        events: At least one.
        interval: Discretisation of the losses.
    """
    return profile_of(composed_loss(events, interval), more=rounding_of(events))


def parted(events: Multiset) -> tuple[float, Multiset]:
    """Return the sum of 1 / variance of all Gaussians over all records, and few other events."""
    variances = [(checked_variance(event), count) for event, count in events]
    precision = math.fsum(count / variance for variance, count in variances if variance is not None)
    return precision, rounded_down(tuple(e for e in events if e[0].gaussian_variance() is None))


@lru_cache(maxsize=256)
def _one_step(event: PrivacyEvent, interval: float) -> Any:
    """Return one event's privacy loss distribution; building it is most of the cost.

    Raises:
        BadInputError: Accountant pld cannot bound it, be it inside of another event.
    """
    if event.no_pld is not None:
        raise no_pld_error(event.name, event.no_pld)
    return event.privacy_loss(interval)


def profile_of(loss: Any, *, more: float = 0.0) -> Profile:
    """Return the privacy profile of a privacy loss distribution, the larger of both directions.

    At -e it is 1 - exp(-e) (1 - delta(e)), which bounds each direction by the other one at e.

    Args:
        loss: The distribution.
        more: Added to each delta, for what rounding has taken from the distribution.
    """

    def delta(epsilons: Array) -> Array:
        away = np.abs(epsilons)
        order = np.argsort(away)
        at = np.empty(len(away))
        if len(away) == 1:  # the library is much faster at a number than at a sequence of one
            at[0] = loss.get_delta_for_epsilon(float(away[0]))
        else:
            at[order] = loss.get_delta_for_epsilon(away[order])
        at = np.minimum(at + more, 1.0)
        return np.where(epsilons >= 0, at, -np.expm1(-away) + np.exp(-away) * at)

    return delta


def loss_of_profile(profile: Profile, interval: float) -> Any:
    """Return a privacy loss distribution that dominates every mechanism with this profile.

    The lower convex envelope of the profile in exp(epsilon) still bounds the mechanism's own,
    which is convex; its corners are then joined (connect the dots, Doroshenko et al. 2022,
    https://arxiv.org/abs/2207.04380, algorithm 1). A mechanism is dominated by the distribution
    because its profile is (Zhu, Dong and Wang 2022, https://arxiv.org/abs/2106.08567, proposition
    8), and so are compositions with it.

    Args:
        profile: Delta at each epsilon >= 0; not rising.
        interval: Discretisation of the losses.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    steps = _steps(profile, interval)
    if steps is None:
        return loss_without_bound(interval)
    epsilons = np.asarray(np.arange(steps + 1) * interval, dtype=np.float64)
    ahead = np.minimum.accumulate(np.clip(profile(epsilons), 0.0, 1.0))
    back = -np.expm1(-epsilons) + np.exp(-epsilons) * ahead
    grid = np.concatenate([-epsilons[:0:-1], epsilons])
    deltas = _convex(np.exp(grid), np.concatenate([back[:0:-1], ahead]))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        interval, np.arange(-steps, steps + 1), np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def loss_without_bound(interval: float = 1.0) -> Any:
    """Return the privacy loss distribution of what may release everything."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    pmf = pld_pmf.create_pmf({}, interval, 1.0, pessimistic_estimate=True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def privacy_loss_of_nothing(interval: float) -> Any:
    """Return the privacy loss distribution of what costs nothing."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.identity(interval)


def _steps(profile: Profile, interval: float) -> int | None:
    """Return how many intervals a profile needs; None if it has no end that can be reached."""
    end = interval
    while profile(np.array([end]))[0] > _TAIL:
        more = min(2 * end, 2 * _LARGEST)
        if more > _LARGEST:
            return None
        if profile(np.array([more]))[0] == profile(np.array([end]))[0] < _LOST:
            break  # the rest is lost at any epsilon
        end = more
    return math.ceil(end / interval)


def _convex(places: Array, values: Array) -> Array:
    """Return the lower convex envelope of values at ascending places, at those places."""
    kept: list[int] = []
    for point in range(len(places)):
        while len(kept) >= 2:
            first, last = kept[-2], kept[-1]
            slope = (values[point] - values[first]) / (places[point] - places[first])
            if values[last] < values[first] + slope * (places[last] - places[first]):
                break
            kept.pop()
        kept.append(point)
    return np.interp(places, places[kept], values[kept])

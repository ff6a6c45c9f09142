"""Bounds on every trial of a selection by its Renyi curve, and the price of the best one by it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import by_part
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.losses import rounded_down
from dpsweep.privacy.events.multiset import Multiset, plan_curve
from dpsweep.privacy.events.poisson_subset import between_orders
from dpsweep.privacy.events.repeat_and_select import repeat_and_select_rdp
from dpsweep.privacy.orders import FILLED_ORDERS
from dpsweep.privacy.selection.number import Selection

Array = NDArray[np.float64]

# A curve may differ in its last digits with what it was computed together with.
_ROUND_UP = 1.0 + 1e-9
_FIRST_SPARSE, _LARGEST_LOG = 63.0, 50.0
_FEW_EVENTS, _STRIDE = 32, 4


def orders_of(curve: Array) -> Array:
    """Return the orders of a bound's curve, of which there are two sets: its length says which.

    Raises:
        BadInputError: It is of neither.
    """
    for orders in (rdp.ORDERS, FILLED_ORDERS):
        if len(curve) == len(orders):
            return orders
    raise BadInputError(f"a Renyi curve of {len(curve)} orders, and no grid has as many")


def curves_of(plans: Iterable[Plan], *, is_filled: bool = False) -> Array:
    """Return the Renyi curves of plans at the orders that their bound needs, shape (n, m).

    These are ``rdp.ORDERS`` where some plan spends so much that the best order of a selection is
    among the first 63, whatever delta and the mean number of trials (their logarithms up to 50
    together), and ``FILLED_ORDERS`` where none does. Plans with very many different noise
    multipliers have slightly smaller ones at the further orders, which cost more.

    Args:
        plans: Each with its events on any parts; of a plan the larger of its parts counts.
        is_filled: Use the filled orders at any rate.
    """
    every = list(plans)
    curves = np.array([_curve(plan, rdp.ORDERS) for plan in every])
    if not every or not (is_filled or _is_sparse(curves.max(axis=0))):
        return curves
    return np.array([_curve(plan, FILLED_ORDERS) for plan in every])


def _is_sparse(curve: Array) -> bool:
    """Say whether the best order of a selection may be where the grid is sparse.

    Epsilon at order a is r(a) + log(..) / (a - 1), smallest where r'(a) (a - 1)^2 is that logarithm
    of 1 / delta and of the mean number.
    """
    place = int(np.searchsorted(rdp.ORDERS, _FIRST_SPARSE))
    before, at = curve[place - 1 : place + 1].tolist()
    return math.isfinite(at) and (at - before) * (_FIRST_SPARSE - 1) ** 2 <= _LARGEST_LOG


def envelope(plans: Iterable[Plan], *, is_filled: bool = False) -> Array:
    """Return a Renyi curve that no plan exceeds in any part of the records, over ``orders_of`` it.

    The maximum is taken order by order: two plans of equal epsilon do not have equal curves.

    Guarantees:
        A trial whose configuration is drawn from a distribution that does not depend on private
        data, over plans under this curve, has at most this curve itself.

    Raises:
        BadInputError: There is no plan.
    """
    curves = curves_of(plans, is_filled=is_filled)
    if not len(curves):
        raise BadInputError("the most expensive plan of no plans is unknown")
    return np.asarray(np.max(curves, axis=0) * _ROUND_UP)


def is_under(plan: Plan, curve: Array) -> bool:
    """Say whether a plan stays within a curve at every order, in every part of the records.

    Where the filled curve of a plan of very many multipliers is above it at further orders alone,
    that may be its rounding, so it is computed there as it is.
    """
    return all(_is_part_under(events, curve) for events in by_part(plan).values())


def _is_part_under(events: Multiset, curve: Array) -> bool:
    orders = orders_of(curve)
    own = _curve_of_part(events, orders)
    above = orders[~(own <= curve)]
    if not len(above):
        return True
    if np.isin(above, rdp.ORDERS).any():  # where nothing is rounded
        return False
    return bool(np.all(plan_curve(events, above) <= curve[np.isin(orders, above)]))


def _curve(plan: Plan, orders: Array) -> Array:
    curve = np.max([_curve_of_part(events, orders) for events in by_part(plan).values()], axis=0)
    return np.where(np.isnan(curve), np.inf, curve)


def _curve_of_part(events: Multiset, orders: Array) -> Array:
    return plan_curve(events) if orders is rdp.ORDERS else _filled_curve(events)


@lru_cache(maxsize=256)
def _filled_curve(events: Multiset) -> Array:
    """Return a curve at ``FILLED_ORDERS``; where it takes long, along chords at most of them."""
    coarse = rounded_down(events)
    further = np.setdiff1d(FILLED_ORDERS, rdp.ORDERS)
    further = further if len(coarse) <= _FEW_EVENTS else further[::_STRIDE]
    orders = np.concatenate([rdp.ORDERS, further])
    curve = np.concatenate([plan_curve(events), plan_curve(coarse, further)])
    rising = np.argsort(orders)
    orders, curve = orders[rising], curve[rising]
    num_finite = int(np.isfinite(curve).sum())
    filled = between_orders(curve[:num_finite], FILLED_ORDERS, at=orders)
    filled[np.isin(FILLED_ORDERS, orders)] = curve
    return filled


def selection_epsilon(curve: Array, selection: Selection, *, delta: float) -> float:
    """Return the epsilon of releasing the best of K trials, each at most ``curve``.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> trial = Plan((EventRun(PoissonGaussian(1.51313, 0.01), 1000),))
    >>> round(selection_epsilon(envelope([trial]), Selection(10, 0), delta=1e-5), 3)
    1.758

    Guarantees:
        Papernot and Steinke 2022 (https://arxiv.org/abs/2110.03620), theorem 2 (truncated negative
        binomial) and theorem 6 (Poisson): the best trial by a fixed order of the scores, released
        with its model and score, is (epsilon, delta)-DP if K is drawn once without looking at
        private data, the trials are independent with configurations from one fixed distribution,
        each runs to its end or to where its own released outputs send it, and nothing of the
        others nor K is released. Training and validation records are disjoint, and the curve
        bounds a trial on either, so the result bounds the larger of the two costs.

        Not covered: pruning against other trials, samplers that learn from scores, an end by time
        or by a good score, and watching how long the search takes.

    Args:
        curve: Renyi curve of one trial, as ``envelope`` gives it.
        selection: Distribution of K.
        delta: In (0, 1).
    Returns:
        Epsilon, rounded up; infinite where the curve is.
    """
    delta = validate.in_unit_interval("delta", delta)
    orders = orders_of(curve)
    total = repeat_and_select_rdp(curve, orders, selection.mean, selection.shape)
    return float(rdp.epsilons(total[None, :], orders, delta)[0][0]) * _ROUND_UP

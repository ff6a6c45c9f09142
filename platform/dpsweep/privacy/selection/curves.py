"""Bounds on every trial of a selection by its Renyi curve, and the price of the best one by it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import by_part
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.multiset import plan_curve
from dpsweep.privacy.events.repeat_and_select import repeat_and_select_rdp
from dpsweep.privacy.selection.number import Selection

Array = NDArray[np.float64]

# A curve may differ in its last digits with what it was computed together with.
_ROUND_UP = 1.0 + 1e-9


def envelope(plans: Iterable[Plan]) -> Array:
    """Return a Renyi curve over ``rdp.ORDERS`` that no plan exceeds in any part of the records.

    The maximum is taken order by order: two plans of equal epsilon do not have equal curves.

    Guarantees:
        A trial whose configuration is drawn from a distribution that does not depend on private
        data, over plans under this curve, has at most this curve itself.

    Raises:
        BadInputError: There is no plan.
    """
    curves = [_curve(plan) for plan in plans]
    if not curves:
        raise BadInputError("the most expensive plan of no plans is unknown")
    return np.asarray(np.max(curves, axis=0) * _ROUND_UP)


def is_under(plan: Plan, curve: Array) -> bool:
    """Say whether a plan stays within a curve at every order, in every part of the records."""
    return bool(np.all(_curve(plan) <= curve))


def _curve(plan: Plan) -> Array:
    curve = np.max([plan_curve(events) for events in by_part(plan).values()], axis=0)
    return np.where(np.isnan(curve), np.inf, curve)


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
        curve: Renyi curve of one trial over ``rdp.ORDERS``, as ``envelope`` gives it.
        selection: Distribution of K.
        delta: In (0, 1).
    Returns:
        Epsilon, rounded up; infinite where the curve is.
    """
    delta = validate.in_unit_interval("delta", delta)
    total = repeat_and_select_rdp(curve, rdp.ORDERS, selection.mean, selection.shape)
    return float(rdp.epsilons(total[None, :], rdp.ORDERS, delta)[0][0]) * _ROUND_UP

"""The largest number whose cost fits: for whatever is dear to compute and nearly a power of it."""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_STEPS = 12
_DIGITS = 4


def largest_within(
    cost: Callable[[float], float],
    cap: float,
    *,
    known: tuple[float, float] | None = None,
    most: float = math.inf,
    close: float = 0.01,
) -> float | None:
    """Return a number, of four digits, whose cost was seen to fit ``cap``; None if none was.

    Costs of privacy grow nearly in proportion to what a trial may spend, so secants in logarithms
    come near the largest number in a few steps. They are kept between what is known to fit and what
    is known not to. Whatever the shape of the cost, what is returned was seen to fit.

    >>> largest_within(lambda epsilon: 2 * epsilon**1.1, 1.0, close=0.0005)
    0.5324
    >>> largest_within(lambda epsilon: 0.75 + 0.4 * epsilon, 1.0, close=0.0005)
    0.6243
    >>> largest_within(lambda epsilon: 2.0 + epsilon, 1.0) is None
    True

    Args:
        cost: Cost of a number, growing with it; NaN or infinite where it has none.
        cap: Largest cost, above 0.
        known: A number above 0 and its cost.
        most: The largest number that is of interest.
        close: How near below the cap a cost is near enough, relative to it.
    """
    low, low_cost, high, high_cost = 0.0, 0.0, math.inf, math.inf  # fits; does not
    misses = 0  # since the last that fitted
    guess = _cut(min(cap, most))
    if known is not None:
        guess = known[0]
    for step in range(_MOST_STEPS):
        value = known[1] if known is not None and step == 0 else cost(guess)
        misses = 0 if value <= cap else misses + 1
        if value <= cap:
            low, low_cost = guess, value
            if value >= (1 - close) * cap or guess >= _cut(min(most, 1e300)):
                break
        else:
            high, high_cost = guess, value if math.isfinite(value) else math.inf
        aim = (1 - close / 3) * cap
        guess = _cut(min(_next(low, low_cost, high, high_cost, aim, misses), most))
        if not low < guess < high:
            break
    return low or None


def _next(
    low: float, low_cost: float, high: float, high_cost: float, aim: float, misses: int
) -> float:
    """Return a number whose cost may be ``aim``, between those that fit and those that do not.

    Where nothing has fitted yet, each further miss doubles the step: a cost of which a part does
    not fall with the number would be approached from above for ever.
    """
    if low and math.isfinite(high_cost):
        slope = math.log(high_cost / low_cost) / math.log(high / low) if low_cost > 0 else 1.0
        between = high / 2
        if low_cost > 0:
            between = low * math.exp(math.log(aim / low_cost) / max(slope, 0.1))
        return float(min(max(between, low * (high / low) ** 0.05), low * (high / low) ** 0.95))
    if low:
        up = min(aim / low_cost, 4.0) if low_cost > 0 else 4.0
        return min(low * up, (low + high) / 2)
    return high * (
        max((aim / high_cost) ** 2 ** (misses - 1), 0.1) if math.isfinite(high_cost) else 0.25
    )


def _cut(value: float) -> float:
    """Return a positive number cut to four significant digits.

    >>> _cut(1.23999), _cut(0.0123999)
    (1.239, 0.01239)
    """
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(value)))
    return math.floor(value * scale + 1e-9) / scale

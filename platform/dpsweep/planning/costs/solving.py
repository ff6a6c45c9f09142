"""A budget solved for: the largest epsilon whose cost is still within a cap."""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_STEPS = 12
_CLOSE = 5e-4  # a cost this near below the cap, relative to it, is near enough
_DIGITS = 4


def largest_within(cost: Callable[[float], float], *, cap: float, most: float) -> float | None:
    """Return a nearly largest epsilon, of four digits, whose cost is at most ``cap``.

    Secants in logarithms, kept between what is known to fit and what is known not to. Whatever the
    shape of the cost, what is returned was seen to fit.

    >>> largest_within(lambda epsilon: 2 * epsilon**1.1, cap=1.0, most=8.0)
    0.5323
    >>> largest_within(lambda epsilon: 2.0 + epsilon, cap=1.0, most=8.0) is None
    True

    Args:
        cost: Grows with epsilon; NaN or infinite where there is none.
        cap: Positive.
        most: The largest epsilon that is of interest.
    """
    low, high = 0.0, math.inf  # fits; does not
    low_cost, high_cost = 0.0, math.inf
    guess = _cut(min(cap, most))
    for _ in range(_MOST_STEPS):
        value = cost(guess)
        if value <= cap:
            low, low_cost = guess, value
            if value >= (1 - _CLOSE) * cap or guess >= _cut(most):
                break
        else:
            high, high_cost = guess, value if math.isfinite(value) else math.inf
        guess = _cut(_next(low, low_cost, high, high_cost, cap, most))
        if not low < guess < high:
            break
    return low or None


def _next(
    low: float, low_cost: float, high: float, high_cost: float, cap: float, most: float
) -> float:
    """Return where the cost may come to the cap, a little below."""
    aim = cap * (1 - _CLOSE / 2)
    if low and math.isfinite(high_cost):
        slope = math.log(high_cost / low_cost) / math.log(high / low)
        between = low * (aim / low_cost) ** (1 / max(slope, 0.1))
        return min(max(between, low * (high / low) ** 0.05), low * (high / low) ** 0.95)
    if low:
        return min(low * min(aim / low_cost, 4.0), most)
    return high * (max(aim / high_cost, 0.1) if math.isfinite(high_cost) else 0.25)


def _cut(value: float) -> float:
    """Return a positive number cut to four significant digits."""
    digits = _DIGITS - 1 - math.floor(math.log10(value))
    return math.floor(value * 10**digits + 1e-9) / 10**digits

"""The largest number whose cost fits: for whatever is dear to compute and nearly a power of it."""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_ITERATIONS = 8


def largest_within(
    cost: Callable[[float], float], cap: float, *, known: tuple[float, float]
) -> float | None:
    """Return a number, to three digits, whose cost was seen to fit ``cap``; None if none was.

    Costs of privacy grow nearly in proportion to what a trial may spend, so the secant rule on the
    logs comes within a percent of the largest number in a few steps.

    >>> largest_within(lambda epsilon: 2 * epsilon**1.2, 3.0, known=(1.0, 2.0))
    1.39

    Args:
        cost: Cost of a number, growing with it; infinite where it has none.
        cap: Largest cost, above 0.
        known: A number above 0 and its cost, a finite one above 0.
    """
    at, price = known
    best, slope = (at if price <= cap else None), 1.0
    for _ in range(_MOST_ITERATIONS):
        guess = _three_digits_down(at * (0.997 * cap / price) ** (1 / slope))
        if guess == at or (best is not None and guess <= best):
            break
        costs = cost(guess)
        if not math.isfinite(costs) or costs == price:
            break
        if costs <= cap:
            best = guess
            if costs >= 0.99 * cap:
                break
        slope = min(max(math.log(costs / price) / math.log(guess / at), 0.25), 4.0)
        at, price = guess, costs
    return best


def _three_digits_down(value: float) -> float:
    """Return a positive number cut to three significant digits.

    >>> _three_digits_down(1.2399), _three_digits_down(0.012399)
    (1.23, 0.0123)
    """
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.floor(value * scale + 1e-9) / scale

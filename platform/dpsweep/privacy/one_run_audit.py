"""One-run audit: what right guesses about canaries prove against a claimed epsilon.

Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run"
(https://arxiv.org/abs/2305.08846): each of m canaries is in the data with probability 1/2,
independently; of r of them, chosen by what was released alone, an attacker guesses whether they
are in. More right guesses than (epsilon, delta) allows refute it.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError

_LARGEST = 1e3  # beyond, no audit tells anything
_WIDTH = 1e-9  # of the bracket around a bound, whose lower end is the answer


def p_value(epsilon: float, *, m: int, guesses: int, correct: int, delta: float) -> float:
    """Return the most that the probability of so many right guesses can be under (epsilon, delta).

    beta + 2 m delta alpha, with p = e^eps / (1 + e^eps), beta = P[Bin(r, p) >= v] and alpha the
    largest of (P[Bin(r, p) >= v - i] - beta) / i, i = 1..v (ibid., theorem 5.2).

    Guarantees:
        At most alpha' with probability at most alpha' if the mechanism is (epsilon, delta)-DP
        under add-or-remove-one, the canaries were included independently with probability 1/2,
        and the guesses are a function of its output and of secrets other than these choices.

    Args:
        epsilon: Claimed, at least 0.
        m: Canaries.
        guesses: r, how many of them were guessed; the others were passed over.
        correct: v, how many guesses are right.
        delta: Claimed, in [0, 1).
    Returns:
        In [0, 1], rounded up in its last digits.
    Raises:
        BadInputError: The numbers do not fit together.

    >>> round(p_value(0.0, m=10, guesses=10, correct=8, delta=0.0), 6)
    0.054688
    """
    _check(m, guesses, correct, delta)
    p = float(scipy.special.expit(validate.non_negative("epsilon", epsilon)))
    tails = _tails(guesses, p, correct)
    beta, alpha = float(tails[0]), 0.0
    if delta > 0 and correct > 0:
        alpha = max(0.0, float(np.max((tails[1:] - beta) / np.arange(1, correct + 1))))
    return min(1.0, (beta + 2 * m * delta * alpha) * (1 + 1e-12))


def _tails(guesses: int, p: float, correct: int) -> NDArray[np.float64]:
    """Return P[Bin(r, p) >= v - i] for i = 0..v."""
    least = correct - np.arange(correct + 1)
    tails: NDArray[np.float64] = np.asarray(scipy.special.bdtrc(least - 1, guesses, p), np.float64)
    return tails


def epsilon_lower_bound(
    m: int, guesses: int, correct: int, *, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the largest epsilon that the guesses refute, at a confidence; 0 where there is none.

    No privacy guarantee: a mechanism may leak any amount more than an audit sees.

    >>> round(epsilon_lower_bound(1000, 100, 100), 5), epsilon_lower_bound(1000, 100, 50)
    (3.49297, 0.0)

    Guarantees:
        Every epsilon up to the result has a ``p_value`` of at most 1 - confidence where that grows
        with epsilon, as it does but for rounding; the result is rounded down. Whoever refutes one
        claim looks at the ``p_value`` of that claim (``is_refuted``).

    Args:
        m: Canaries, each included with probability 1/2.
        guesses: r, fixed before the scores are looked at.
        correct: v, of these right.
        delta: Of the claim.
        confidence: In (0, 1).
    Raises:
        BadInputError: The numbers do not fit together.
    """
    level = 1 - validate.in_unit_interval("confidence", confidence)

    def is_refused(epsilon: float) -> bool:
        value = p_value(epsilon, m=m, guesses=guesses, correct=correct, delta=delta)
        return value <= level

    if not is_refused(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST and is_refused(high):
        low, high = high, 2 * high
    while high - low > _WIDTH:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refused(middle) else (low, middle)
    return low


def ceiling(m: int, guesses: int, *, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return the bound if all guesses are right: claims above it cannot be refuted.

    With delta 0 it is logit((1 - confidence)^(1/r)).

    >>> round(ceiling(100, 20), 5)
    1.82272
    """
    return epsilon_lower_bound(m, guesses, guesses, delta=delta, confidence=confidence)


def guesses_needed(epsilon: float, *, confidence: float = 0.95) -> int:
    """Return how many guesses, all of them right, refute an epsilon (delta 0; a few more else).

    >>> guesses_needed(1.0), guesses_needed(3.0), guesses_needed(8.0)
    (10, 62, 8932)
    """
    log_p = float(scipy.special.log_expit(validate.non_negative("epsilon", epsilon)))
    level = 1 - validate.in_unit_interval("confidence", confidence)
    return math.ceil(math.log(level) / log_p)


def is_refuted(
    epsilon: float,
    *,
    m: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float = 0.95,
) -> bool:
    """Say whether the guesses refute a claim, at a confidence.

    Guarantees:
        A claim that holds is refuted with probability at most 1 - confidence (``p_value``).
    """
    level = 1 - validate.in_unit_interval("confidence", confidence)
    if not math.isfinite(epsilon):
        return False
    value = p_value(epsilon, m=m, guesses=guesses, correct=correct, delta=delta)
    return value <= level


def _check(m: int, guesses: int, correct: int, delta: float) -> None:
    validate.whole("m", m, low=1)
    validate.whole("guesses", guesses, low=1)
    validate.whole("correct", correct, low=0)
    if not correct <= guesses <= m:
        raise BadInputError(
            f"{correct} right of {guesses} guesses about {m} canaries",
            fix="correct <= guesses <= m",
        )
    if not 0 <= delta < 1:
        raise BadInputError(f"delta must be in [0, 1), got {delta!r}")

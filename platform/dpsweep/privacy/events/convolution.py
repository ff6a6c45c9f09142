"""Many privacy loss distributions composed at once, by one Fourier transform on a common grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from dpsweep.privacy.events.base import Array

#: Mass beyond either end of the window that the composition is computed on.
_TAIL = 1e-18
#: Exponents that are tried in a tail bound, over the standard deviation.
_EXPONENTS = np.geomspace(1e-2, 1e2, 41)
#: So many neighbouring losses count as one where an exponent is chosen.
_BLOCK = 16


def composed(parts: Sequence[tuple[Any, int]], interval: float) -> Any:
    """Return the composition of privacy losses, an upper bound, as a dense ``PLDPmf``.

    The losses of independent events add up, so their distributions are convolved: their discrete
    Fourier transforms are multiplied, on a window that holds all but a mass of ``_TAIL`` on either
    side by Chernoff's bound. What lies above the window is counted as an infinite loss; the
    transform moves it, and what lies below, to the other end, which adds to the bound. The sums are
    off by about 1e-16 of the mass for each convolved event (``losses.rounding_of``).

    Args:
        parts: Probability mass functions of ``dp_accounting`` on one grid (their infinite loss
            included), and how often each is composed; at least one.
        interval: Distance of the grid's points.
    """
    from dp_accounting.pld import pld_pmf

    if any(pmf._infinity_mass >= 1 for pmf, _ in parts):  # it may release everything
        return pld_pmf.create_pmf({}, interval, 1.0, pessimistic_estimate=True)
    dense = [(pmf.to_dense_pmf(), count) for pmf, count in parts]
    log_finite = math.fsum(count * math.log1p(-pmf._infinity_mass) for pmf, count in dense)
    masses = [(int(pmf._lower_loss), pmf._probs, count) for pmf, count in dense]
    first, last = _window(masses)
    size = scipy.fft.next_fast_len(last - first + 1, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    start = 0
    for lower, probs, count in masses:
        start += lower * count
        spectrum *= scipy.fft.rfft(_wrapped(probs, size)) ** count
    # Point j of the result stands for every loss start + j + a multiple of the size.
    probs = np.maximum(np.roll(scipy.fft.irfft(spectrum, size), start - first), 0.0)
    infinite = -math.expm1(log_finite) + _TAIL
    return pld_pmf.DensePLDPmf(interval, first, probs, infinite, True)


def _wrapped(probs: Array, size: int) -> Array:
    """Return a mass function of a circle of ``size`` points."""
    if len(probs) <= size:
        return np.pad(probs, (0, size - len(probs)))
    rounds = -(-len(probs) // size)
    padded: Array = np.pad(probs, (0, rounds * size - len(probs)))
    return np.asarray(padded.reshape(rounds, size).sum(axis=0))


def _window(masses: Sequence[tuple[int, Array, int]]) -> tuple[int, int]:
    """Return the first and last grid point such that at most ``_TAIL`` lies beyond either."""
    lowest = sum(lower * count for lower, _, count in masses)
    highest = sum((lower + len(probs) - 1) * count for lower, probs, count in masses)
    last = min(_reach(masses), highest)
    mirrored = [(1 - lower - len(probs), probs[::-1], count) for lower, probs, count in masses]
    first = max(-_reach(mirrored), lowest)
    return min(first, highest), max(last, first + 1, lowest)


def _reach(masses: Sequence[tuple[int, Array, int]]) -> int:
    """Return a grid point beyond which at most ``_TAIL`` lies.

    For a sum S of independent losses and any rate t > 0, P(S > a) <= exp(-t a) E exp(t S), and
    E exp(t S) is the product of the parts'. The rate is chosen by a rough estimate of it.
    """
    rates = _EXPONENTS / math.sqrt(1 + sum(count * _variance(probs) for _, probs, count in masses))
    rough = np.zeros(len(rates))
    for lower, probs, count in masses:
        starts = np.arange(0, len(probs), _BLOCK)
        middles = lower + np.minimum(starts + _BLOCK / 2, len(probs) - 1)
        rough += count * _log_moments(np.add.reduceat(probs, starts), middles, rates)
    best = rates[[int(np.argmin((rough - math.log(_TAIL)) / rates))]]
    moment = math.fsum(
        count * float(_log_moments(probs, lower + np.arange(len(probs), dtype=np.float64), best)[0])
        for lower, probs, count in masses
    )
    return math.ceil((moment - math.log(_TAIL)) / float(best[0])) + 1


def _variance(probs: Array) -> float:
    places = np.arange(len(probs), dtype=np.float64)
    total = max(float(probs.sum()), 1e-300)
    mean = float(probs @ places) / total
    return float(probs @ (places - mean) ** 2) / total


def _log_moments(probs: Array, places: Array, rates: Array) -> Array:
    """Return log of the sum of probs * exp(rate * place), for each rate."""
    exponents = rates[:, None] * places[None, :]
    with np.errstate(divide="ignore"):
        exponents += np.log(probs)
    top = exponents.max(axis=1)
    logs: Array = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
    return logs

"""The privacy profile of a Poisson-sampled Gaussian, at many epsilons at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from dpsweep.privacy.events.base import Array

#: Of the outcomes, the most extreme are left out of the grid and counted as lost: beyond
#: this many standard deviations lies a mass of less than exp(-50).
_TAIL_DEVIATIONS = 9.907
#: A loss beyond this counts as infinite: ``exp`` ends at 709, in the library, too.
_LARGEST_LOSS = 600.0
#: What rounding may take from a value: a part of it that grows with the noise, as differences of
#: close numbers do, and where the sample rate is tiny.
_ROUNDING, _ROUNDING_OF_RATE = 1e-12, 1e-15


def sampled_gaussian_profiles(epsilons: Array, noise: float, rate: float) -> tuple[Array, Array]:
    """Return delta at each epsilon of both directions, rounded up.

    The pair is P = (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2), and the other way round. G
    is the profile of the Gaussian (Balle and Wang 2018, https://arxiv.org/abs/1805.06530, theorem
    8). Where exp(epsilon) > 1 - q,

        delta_remove(epsilon) = q G(log(1 + (exp(epsilon) - 1) / q)), else 1 - exp(epsilon);
        delta_add(epsilon) = (1 - (1 - q) exp(epsilon)) G(-log(1 + (exp(-epsilon) - 1) / q)), which
        is 0 where exp(-epsilon) <= 1 - q,

    since both likelihood ratios are monotone in the outcome, and that of P is 1 - q + q times that
    of the Gaussian.

    Args:
        epsilons: Any, float64, shape (n,).
        noise: Noise multiplier s > 0.
        rate: Sample rate q in (0, 1).
    Returns:
        delta_remove and delta_add in [0, 1], float64, shape (n,) each.
    """
    edge = math.log1p(-rate)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        odds = np.expm1(epsilons) / rate
        # Of what passes the largest float, the 1 is long lost.
        far = np.where(epsilons > 40, epsilons, np.log(np.expm1(epsilons))) - math.log(rate)
        up = np.where(np.isposinf(odds) & np.isfinite(epsilons), far, np.log1p(odds))
        remove = np.where(
            epsilons > edge, rate * _gaussian_profile(up, 1 / noise), -np.expm1(epsilons)
        )
        share = -np.expm1(epsilons + edge)
        # -log(1 + (exp(-epsilon) - 1) / q), which would cancel near rate 1.
        down = epsilons + math.log(rate) - np.log(share)
        add = np.where(-epsilons > edge, share * _gaussian_profile(down, 1 / noise), 0.0)
    more = 1 + _ROUNDING * (1 + noise) + _ROUNDING_OF_RATE / rate
    return np.clip(more * remove, 0.0, 1.0), np.clip(more * add, 0.0, 1.0)


def _gaussian_profile(epsilons: Array, mu: float) -> Array:
    """Return the profile of a Gaussian; 1 at minus infinity and 0 at infinity."""
    top = scipy.special.log_ndtr(mu / 2 - epsilons / mu)
    bottom = epsilons + scipy.special.log_ndtr(-mu / 2 - epsilons / mu)
    values: Array = np.exp(top) * -np.expm1(np.minimum(bottom - top, 0.0))
    return np.where(np.isneginf(epsilons), 1.0, np.where(np.isposinf(epsilons), 0.0, values))


def sampled_gaussian_loss(noise: float, rate: float, interval: float) -> Any:
    """Return the privacy loss distribution of one event, an upper bound.

    Its profile is joined at the points of the grid (connect the dots, Doroshenko et al. 2022,
    https://arxiv.org/abs/2207.04380, algorithm 1), as ``dp_accounting`` does it. What is left of
    the profile at ``_LARGEST_LOSS`` counts as an infinite loss.

    Args:
        noise: Noise multiplier > 0.
        rate: Sample rate in (0, 1).
        interval: Distance of the grid's points.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    def loss(outcome: float) -> float:
        """Return the log likelihood ratio of P at an outcome."""
        exponent = (2 * outcome - 1) / (2 * noise * noise)
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))

    far = _TAIL_DEVIATIONS * noise
    directions = []
    for index, (low, high) in enumerate(
        [(loss(-far), loss(1 + far)), (-loss(far), -loss(-far))],
    ):
        most = math.floor(_LARGEST_LOSS / interval)
        first = max(math.floor(low / interval), -most)
        last = min(math.ceil(high / interval), most)
        grid = np.arange(first, last + 1, dtype=np.float64) * interval
        deltas = np.minimum.accumulate(sampled_gaussian_profiles(grid, noise, rate)[index])
        directions.append(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
        )
    return privacy_loss_distribution.PrivacyLossDistribution(*directions)

"""Renyi curves of noisy sums, vectorised over noise multipliers, and the epsilon of any curve.

The Poisson-subsampled Gaussian mechanism (Mironov, Talwar and Zhang 2019,
https://arxiv.org/abs/1908.10530) with noise multiplier s and sample rate q has, at order a,

    r(a) = log(A) / (a - 1),   A = E[(1 + u)^a],   u = q (e^((2z-1)/(2 s^2)) - 1),   z ~ N(0, s^2)

The other direction of add-or-remove-one is dominated by this one (their theorem 5).

``dp_accounting`` computes one order and one noise multiplier at a time (25 ms for a curve), too
slow for a schedule of a thousand. Its integer orders equal these; its fractional ones add up the
absolute values of an alternating series, so at low orders they lie above the formula, sometimes
far. Tests hold these curves to both. Since E[u] = 0, A - 1 is a sum of non-negative terms; summing
those keeps the relative precision where A is close to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

# dp_accounting's default orders, and more near 1 (for little noise). Epsilons equal dp_accounting's
# where its own optimum is from 2 to 63; below 2 (multipliers under .05) they can be twice as large,
# as the curve between orders 1 and 2 is bounded by its chord there.
_FRACTIONAL = np.array(
    [1.0125, 1.025, 1.05, 1.075] + [1 + x / 10 for x in range(1, 100) if x % 10], dtype=np.float64
)
_INTEGER = np.array([*range(2, 64), 128, 256, 512, 1024], dtype=np.int64)
_SORTED = np.argsort(np.concatenate([_FRACTIONAL, _INTEGER]))

#: Orders of every curve, ascending, float64.
ORDERS: Array = np.concatenate([_FRACTIONAL, _INTEGER])[_SORTED]
#: Further orders (much noise, few steps), computed only where the best order is ORDERS[-1].
HIGH_ORDERS: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768)


def orders_at(level: int) -> Array:
    """Return the grid of orders with the first ``level`` of ``HIGH_ORDERS`` appended."""
    return np.concatenate([ORDERS, np.array(HIGH_ORDERS[:level], dtype=np.float64)])


def level_of(order: float) -> int:
    """Return the level of the smallest grid that reaches ``order``.

    >>> level_of(1024), level_of(1024.5), level_of(32768)
    (0, 1, 5)
    """
    return sum(bool(order > last) for last in (ORDERS[-1], *HIGH_ORDERS[:-1]))


#: Curves are rounded up by more than the error of the sums below, far below any digit printed.
ROUND_UP = 1.0 + 1e-8
# Of more terms than this, those that are smaller than the largest by a factor of exp(-60) are left
# out: of 32,768 of them less than 1e-21 of the sum.
_MANY_TERMS, _NEGLIGIBLE = 40, 60.0
_BLOCK_ELEMENTS = 1 << 17  # elements of a temporary: 1 MiB of float64
_ROWS = 128  # noise multipliers at once: their terms stay in a cache of the processor
_TAIL = 9.0  # standard deviations kept on either side; the rest is below e^-40
# Below this noise the quadrature needs more points than its curves are worth (one step costs an
# epsilon over 100); the chord between integer orders is an upper bound there.
_SMALLEST_QUADRATURE_NOISE = 0.05
# |u| below which four terms of a binomial series say more than a difference does.
_NEAR = 3e-4
# Below this noise the factored sums cancel or overflow.
_SMALLEST_FACTORED_NOISE = 0.5
# Above this order the factored sums are not asked: 38 noise multipliers out a weight is 0 in
# float64, and the largest terms of an order lie around z = order.
_LARGEST_FACTORED_ORDER = 11.0


def _integer_log_moments(noise: Array, sample_rate: float, orders: Sequence[int]) -> Array:
    """Return log(A) at integer orders, shape (len(noise), len(orders)), for 0 < q < 1.

    A - 1 = sum_{k>=2} C(a,k) (1-q)^(a-k) q^k (e^((k^2-k)/(2 s^2)) - 1).
    """
    counts = np.arange(2, max(orders) + 1, dtype=np.float64)
    result = np.empty((len(noise), len(orders)))
    for begin in range(0, len(noise), _ROWS):
        part = noise[begin : begin + _ROWS, None]
        exponent = (counts * counts - counts) / (2 * part * part)
        log_gain = exponent + np.log(-np.expm1(-exponent))
        for column, order in enumerate(orders):
            terms = log_gain[:, : order - 1] + _log_weights(order, sample_rate)
            top = terms.max(axis=1, keepdims=True)
            if order > _MANY_TERMS:  # most of them are nothing beside the largest
                counted = np.flatnonzero((terms >= top - _NEGLIGIBLE).any(axis=0))
                terms = terms[:, counted[0] : counted[-1] + 1]
            terms -= top
            np.exp(terms, out=terms)
            result[begin : begin + _ROWS, column] = top[:, 0] + np.log(terms.sum(axis=1))
    return np.logaddexp(0.0, result) if np.any(result > 30) else np.log1p(np.exp(result))


@lru_cache(maxsize=256)
def _log_weights(order: int, sample_rate: float) -> Array:
    """Return log(C(a,k) (1-q)^(a-k) q^k) for k = 2 ... a."""
    counts = np.arange(2, order + 1, dtype=np.float64)
    return np.asarray(
        scipy.special.gammaln(order + 1)
        - scipy.special.gammaln(counts + 1)
        - scipy.special.gammaln(order - counts + 1)
        + counts * math.log(sample_rate)
        + (order - counts) * math.log1p(-sample_rate)
    )


def _power_excess(power: Array, exponent: float, gain: Array) -> Array:
    """Return (1 + u)^p - 1 - p u from p log(1 + u), p and u, to full relative precision.

    The difference cancels for small u, where four terms of the binomial series replace it.
    """
    near = np.abs(gain) * max(exponent, 1.0) < _NEAR
    return np.where(near, _binomial_series(exponent, gain), np.expm1(power) - exponent * gain)


def _nodes(
    noise: Array, sample_rate: float, width: int, step: Array, highest: float
) -> tuple[Array, Array, Array, Array]:
    """Return quadrature weight, its log, u and log(1 + u), each of shape (len(noise), width).

    Rows of a block have one width. Nodes past a row's own end, at the highest order + 9 s, weigh
    nothing and have u = 0: out there u overflows, and infinity times no weight is not a number.
    """
    sigma, spacing = noise[:, None], step[:, None]
    nodes = spacing * np.arange(width) - _TAIL * sigma
    log_ratio = (2 * nodes - 1) / (2 * sigma * sigma)
    log_weight = np.log(spacing / (sigma * math.sqrt(2 * math.pi))) - (nodes / sigma) ** 2 / 2
    past = nodes > highest + _TAIL * sigma + spacing
    log_ratio[past], log_weight[past] = 0.0, -np.inf
    gain = sample_rate * np.expm1(np.minimum(log_ratio, 600))
    log_gain = np.where(log_ratio < 600, np.log1p(gain), log_ratio + math.log(sample_rate))
    log_gain[past] = 0.0
    return np.exp(log_weight), log_weight, gain, log_gain


def _fractional_log_moments(noise: Array, sample_rate: float, orders: Array) -> Array:
    """Return log(A) at fractional orders, shape (len(noise), len(orders)), for 0 < q < 1.

    The trapezoidal rule converges geometrically: the integrand is a Gaussian of width s, analytic
    up to the zero of 1 + u at distance pi s^2 from the real axis, so a step of 0.45 s^2 (and at
    most s / 2) leaves a relative error near e^-43.
    """
    result = np.empty((len(noise), len(orders)))
    step = np.minimum(noise / 2, 0.45 * noise * noise)
    widths = np.ceil((float(orders.max()) + 2 * _TAIL * noise) / step).astype(np.int64) + 1
    num_powers = len(np.unique(np.floor(orders))) + len(np.unique(orders - np.floor(orders)))
    by_width = np.argsort(widths, kind="stable")
    begin = 0
    while begin < len(noise):
        # Neighbors in width share one rectangular block.
        stop = begin + 1
        room = _BLOCK_ELEMENTS // num_powers
        while stop < len(noise) and (stop + 1 - begin) * widths[by_width[stop]] <= room:
            stop += 1
        rows = by_width[begin:stop]
        width = int(widths[rows[-1]])
        nodes = _nodes(noise[rows], sample_rate, width, step[rows], float(orders.max()))
        direct = (noise[rows] < _SMALLEST_FACTORED_NOISE) | (orders.max() > _LARGEST_FACTORED_ORDER)
        if np.any(direct):
            reach = np.stack([noise[rows], step[rows]], axis=1)
            part = [values[direct] for values in nodes]
            result[rows[direct]] = _direct_moments(part, reach[direct], orders)
        if not np.all(direct):
            result[rows[~direct]] = _factored_moments([part[~direct] for part in nodes], orders)
        begin = stop
    return result


def _factored_moments(nodes: Sequence[Array], orders: Array) -> Array:
    """Return log(A) with a = i + f split into whole and fractional part: few powers, one product.

    With P_i = (1+u)^i - 1 - i u and D = (1+u)^f - 1 - f u, (1+u)^a - 1 - a u is
    P (1+u)^f + D + i u ((1+u)^f - 1). P_1 is 0 and P_(i+1) is (1+u) P_i + i u^2: no term of that
    is negative, so none cancels.
    """
    weight, _, gain, log_gain = nodes
    wholes, whole_index = np.unique(np.floor(orders), return_inverse=True)
    parts, part_index = np.unique(orders - np.floor(orders), return_inverse=True)
    square = weight * gain**2
    high = np.empty((len(gain), len(wholes), gain.shape[1]))
    running, whole = np.zeros_like(gain), 1
    for column, wanted in enumerate(wholes):
        while whole < wanted:
            running = running * (1 + gain) + whole * square
            whole += 1
        high[:, column] = running
    first = np.expm1(parts[:, None] * log_gain[:, None, :])
    excess = _less_linear(first, parts, gain)
    sums = (
        high @ (1 + first).transpose(0, 2, 1)
        + (excess @ weight[:, :, None]).transpose(0, 2, 1)
        + wholes[:, None] * (first @ (weight * gain)[:, :, None]).transpose(0, 2, 1)
    )
    return np.asarray(np.log1p(np.maximum(sums[:, whole_index, part_index], 0.0)))


def _less_linear(first: Array, exponents: Array, gain: Array) -> Array:
    """Return (1 + u)^f - 1 - f u from (1 + u)^f - 1, f in (0, 1) and u, as ``_power_excess`` does.

    Args:
        first: Shape (rows, f, nodes).
        exponents: f, shape (f,).
        gain: u, shape (rows, nodes).
    """
    excess = first - exponents[:, None] * gain[:, None, :]
    row, node = np.nonzero(np.abs(gain) < _NEAR)
    excess[row, :, node] = _binomial_series(exponents, gain[row, node][:, None])
    return excess


def _binomial_series(exponent: float | Array, gain: Array) -> Array:
    """Return the first terms of (1 + u)^p - 1 - p u."""
    return np.asarray(
        (exponent * (exponent - 1) / 2)
        * gain**2
        * (1 + (exponent - 2) / 3 * gain * (1 + (exponent - 3) / 4 * gain))
    )


def _direct_moments(nodes: Sequence[Array], reach: Array, orders: Array) -> Array:
    """Return log(A) order by order, for little noise: in logarithms wherever A is large.

    Args:
        nodes: What ``_nodes`` returned.
        reach: Noise multiplier and step of each row, shape (rows, 2).
        orders: Orders.
    """
    result = np.empty((len(nodes[0]), len(orders)))
    for column, order in enumerate(orders):
        # Nodes start at -9 s, and nothing of this order lies beyond order + 9 s.
        width = int(np.max(np.ceil((order + 2 * _TAIL * reach[:, 0]) / reach[:, 1]))) + 1
        weight, log_weight, gain, log_gain = (part[:, :width] for part in nodes)
        power = order * log_gain
        exponent = power + log_weight
        top = exponent.max(axis=1)
        log_sum = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
        # Elsewhere the logarithm has lost the digits of A - 1.
        rows = np.flatnonzero(log_sum <= 1)
        terms = np.where(
            power[rows] < 30,
            _power_excess(np.minimum(power[rows], 30), order, gain[rows]) * weight[rows],
            np.exp(np.minimum(exponent[rows], 600)) - (1 + order * gain[rows]) * weight[rows],
        )
        log_sum[rows] = np.log1p(np.maximum(terms.sum(axis=1), 0.0))
        result[:, column] = log_sum
    return result


def _chord_log_moments(integer: Array, orders: Array) -> Array:
    """Return an upper bound of log(A) at ``orders`` from integer orders 2, 3, ...

    log(A) is convex in the order and 0 at order 1, so it lies below its chords.
    """
    whole = np.concatenate([np.zeros((len(integer), 1)), integer], axis=1)
    low = np.floor(orders).astype(np.int64)
    part = orders - low
    return whole[:, low - 1] * (1 - part) + whole[:, low] * part


def _between_neighbors(noise: Array, sample_rate: float, order: float) -> Array:
    """Return an upper bound of log(A) at one order > 2 from the whole orders beside it."""
    low = math.floor(order)
    beside = _integer_log_moments(noise, sample_rate, [low, low + 1])
    return beside[:, 0] * (low + 1 - order) + beside[:, 1] * (order - low)


def poisson_gaussian_rdp(noise: Array, sample_rate: float, orders: Array | None = None) -> Array:
    """Return the Renyi curves of Poisson-subsampled Gaussians.

    >>> curve = poisson_gaussian_rdp(np.array([1.0]), 0.01, np.array([2.0]))
    >>> round(float(curve[0, 0]), 8)
    0.00017181

    Guarantees:
        Not below the formula of Mironov, Talwar and Zhang and at most 1e-7 (relative) above it: the
        error of the sums is less than the 1e-8 that curves are rounded up by. Fractional orders are
        bounded from above by their neighbors at noise multipliers below 0.05, and where they are so
        high that sums overflow; no such order is in ``ORDERS``.

    Args:
        noise: Noise multipliers >= 0, float64, shape (n,).
        sample_rate: q in [0, 1].
        orders: Orders > 1, float64, shape (m,); ``ORDERS`` where left out.
    Returns:
        r(order), float64, shape (n, m); infinite where the noise is 0.
    """
    orders = ORDERS if orders is None else np.asarray(orders, dtype=np.float64)
    noise = np.asarray(noise, dtype=np.float64)
    curves = np.full((len(noise), len(orders)), np.inf)
    if sample_rate == 0:
        return np.zeros_like(curves)
    # Squares of tinier noise underflow; it protects nothing in any case.
    live = np.flatnonzero(noise > 1e-100)
    if sample_rate == 1:
        curves[live] = orders / (2 * noise[live, None] ** 2) * ROUND_UP
        return curves
    is_integer = orders == np.floor(orders)
    whole, fraction = np.flatnonzero(is_integer), np.flatnonzero(~is_integer)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        if len(whole):
            integers = [int(order) for order in orders[whole]]
            curves[np.ix_(live, whole)] = _integer_log_moments(noise[live], sample_rate, integers)
        if len(fraction):
            between = orders[fraction]
            fits = noise >= _SMALLEST_QUADRATURE_NOISE
            quad, chord = np.flatnonzero(fits), live[~fits[live]]
            if len(quad):
                curves[np.ix_(quad, fraction)] = _fractional_log_moments(
                    noise[quad], sample_rate, between
                )
            if len(chord):
                upto = list(range(2, math.ceil(between.max()) + 1))
                integer = _integer_log_moments(noise[chord], sample_rate, upto)
                curves[np.ix_(chord, fraction)] = _chord_log_moments(integer, between)
            for column in fraction:
                lost = live[~np.isfinite(curves[live, column])]
                if len(lost):
                    order = float(orders[column])
                    curves[lost, column] = _between_neighbors(noise[lost], sample_rate, order)
    return curves / (orders - 1) * ROUND_UP


def epsilons(rdp: Array, orders: Array, delta: float) -> tuple[Array, NDArray[np.int64]]:
    """Return the epsilon of each curve at ``delta``, and the index of the order that gives it.

    epsilon = min_a r(a) + log(1 - 1/a) - log(delta a) / (a - 1): Canonne, Kamath and Steinke 2020
    (https://arxiv.org/abs/2004.00010, proposition 12) and Balle et al. 2020; or 0 where
    sqrt(1 - e^-r) is below delta already. The same rule as dp_accounting's.

    Args:
        rdp: Curves, float64, shape (n, m).
        orders: Their orders, shape (m,), all above 1.01 (the bound is unstable below).
        delta: In (0, 1).
    Returns:
        Two arrays of shape (n,).
    """
    offset = np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # What is not a number is no bound.
    candidates = np.where(np.isnan(rdp), np.inf, rdp + offset)
    best = np.argmin(candidates, axis=1)
    result = np.maximum(candidates[np.arange(len(best)), best], 0.0)
    # r grows with the order: if any order passes, the smallest does.
    smallest = np.where(np.isnan(rdp), np.inf, rdp).min(axis=1)
    result[delta**2 + np.expm1(-smallest) > 0] = 0.0
    return result, best

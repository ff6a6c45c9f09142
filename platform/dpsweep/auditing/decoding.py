"""Decoding of a release: which canaries are in it, as one who knows all else would judge.

A release is y = sum_i a_i u_i + noise, u_i what canary i adds if it is drawn, a_i in {0, 1}. The
attacker knows every u_i, the sampling rate and the noise that was charged for. He takes linear
estimates of all a_i at once (the posterior mean of a Gaussian prior with the right two moments),
which tells canaries apart whose gradients are alike, and from each the likelihood ratio of being
included to being left out. How much noise there really is he reads off the release itself: noise
that is missing, or smaller than it should be, thus gives him all that it hid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Standard deviations of the noise that are tried, in parts of what was charged for.
_SCALES = 2.0 ** np.arange(-24, 7)
_NOTHING = 1e-10  # eigenvalues below this part of the largest one are rounding


def log_likelihood_ratios(
    released: Array, contributions: NDArray[np.float32], sample_rate: float
) -> Array:
    """Return for each canary log(P(release | it is included) / P(release | it is not)).

    Guarantees:
        A function of what was released and of public values alone; so are guesses by it.

    Args:
        released: Release over the standard deviation of its noise, (entries,).
        contributions: What each canary adds if it is drawn, over the same, (m, entries).
        sample_rate: Probability q in (0, 1] that a record that is there is drawn.
    Returns:
        float64 (m,); 0 for a canary that adds nothing.
    """
    mean = sample_rate / 2
    variance = mean * (1 - mean)
    centred = released - mean * contributions.sum(axis=0, dtype=np.float64)
    gram = (contributions @ contributions.T).astype(np.float64)
    sizes, basis = np.linalg.eigh(gram)
    is_there = sizes > _NOTHING * max(float(sizes[-1]), 1e-300)
    sizes, basis = sizes[is_there], basis[:, is_there]
    if not len(sizes):
        return np.zeros(len(contributions))
    along = basis.T @ (contributions @ centred.astype(np.float32)).astype(np.float64)
    noise = _noise_variance(centred, along, sizes, variance)
    signal = variance * sizes / (variance * sizes + noise)
    share = np.square(basis) @ signal  # of a canary's estimate that is its own
    rest = np.maximum(1 - share, 1e-15)
    estimate = basis @ (variance * along / (variance * sizes + noise))
    usable = share > 1e-12
    share = np.where(usable, share, 1.0)
    value = mean + estimate / share
    error = np.maximum(variance * rest / share, 1e-15)
    exponent = np.where(usable, (value - 0.5) / error, 0.0)
    if sample_rate >= 1:
        return exponent
    ratio: Array = np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + exponent)
    return np.where(usable, ratio, 0.0)


def _noise_variance(centred: Array, along: Array, sizes: Array, variance: float) -> float:
    """Return the variance of the noise under which a release is the likeliest.

    Args:
        centred: The release less its mean, (entries,).
        along: Its products with the eigenvectors' combinations of contributions, (rank,).
        sizes: The eigenvalues, (rank,).
        variance: Of one a_i.
    """
    inside = np.square(along) / sizes
    outside = max(float(centred @ centred) - float(inside.sum()), 0.0)
    num_outside = len(centred) - len(sizes)
    tried = np.square(_SCALES)
    spread = variance * sizes[None, :] + tried[:, None]
    cost = np.log(spread).sum(axis=1) + (inside / spread).sum(axis=1)
    cost += num_outside * np.log(tried) + outside / tried
    return float(tried[np.argmin(cost)])


def count_right(scores: Array, is_in: NDArray[np.bool_], guesses: int, *, two_sided: bool) -> int:
    """Return how many of r guesses are right: ``in`` for the highest scores, else ``out``.

    >>> scores, is_in = np.array([3.0, -1.0, 0.5, -2.0]), np.array([True, True, False, False])
    >>> [count_right(scores, is_in, 2, two_sided=both) for both in (True, False)]
    [2, 1]

    Args:
        scores: float64 (m,).
        is_in: Which canaries are included, bool (m,): the secret.
        guesses: r <= m; fixed before scores are looked at, as is ``two_sided``.
        two_sided: Half of the guesses are ``out``; otherwise none is.
    """
    order = np.argsort(-scores, kind="stable")
    num_out = guesses // 2 if two_sided else 0
    num_in = guesses - num_out
    right = int(is_in[order[:num_in]].sum())
    return right + (int((~is_in[order[len(order) - num_out :]]).sum()) if num_out else 0)

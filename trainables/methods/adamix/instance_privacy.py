"""Instance privacy: what a run reveals about its single records, and membership inference.

Everything here is a function of private records without noise. It is for the eyes of whoever
holds the records, and no claim: what holds for everybody is the plan's epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError

Array = NDArray[np.float64]

#: First entry of every report, so that nobody can read one without it.
PRIVATE = "figures about single private records: do not publish"
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def per_instance_mu(sum_of_squares: ArrayLike) -> Array:
    """Return what each record spends, as the mu of Gaussian differential privacy.

    mu_i = sqrt(sum_t (min(|g_i(w_t)|, tau_t) / (sigma tau_t))^2), over the steps that the record
    was in (Golatkar et al. 2022, https://arxiv.org/abs/2203.11481, appendix C, proposition 14):
    telling the run with record i from the run without it is as hard as telling N(0, 1) from
    N(mu_i, 1), at the iterates that were seen.

    >>> per_instance_mu([0.04, 0.0]).tolist()
    [0.2, 0.0]

    Guarantees:
        None that may be published. mu_i depends on record i and on the others, holds for the
        full-batch Gaussian mechanism alone, and for the iterates of this run alone.

    Args:
        sum_of_squares: (records,) sum over steps of (clipped norm / noise standard deviation)^2.
    Raises:
        BadInputError: A value is negative or not a number.
    """
    sums = _vector("sum_of_squares", sum_of_squares)
    if (sums < 0).any():
        raise BadInputError("sum_of_squares has negative values", fix="give sums of squares")
    return np.sqrt(sums)


def per_instance_epsilon(mu: ArrayLike, delta: float) -> Array:
    """Return the exact epsilon of each mu at ``delta``, rounded up; 0 for mu = 0.

    Solves delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018,
    https://arxiv.org/abs/1805.06530, theorem 8) for all records at once, by bisection.

    >>> per_instance_epsilon([1.0, 0.0], 1e-5).round(4).tolist()
    [4.3772, 0.0]

    Args:
        mu: (records,) values >= 0.
        delta: In (0, 1).
    Returns:
        (records,) float64.
    Raises:
        BadInputError: A value is negative or not a number.
    """
    values = _vector("mu", mu)
    if (values < 0).any():
        raise BadInputError("mu has negative values", fix="give values of per_instance_mu")
    log_delta = np.log(validate.in_unit_interval("delta", delta))
    epsilons = np.zeros_like(values)
    spends = values > 0
    spends[spends] = _log_delta(values[spends], np.zeros(int(spends.sum()))) > log_delta
    at = values[spends]
    low = np.zeros_like(at)
    # At this epsilon the first term alone is below delta.
    high = at * at / 2 + at * np.sqrt(-2 * log_delta) + 1e-12
    for _ in range(100):
        middle = (low + high) / 2
        above = _log_delta(at, middle) > log_delta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
        if (high - low <= 1e-13 * high).all():
            break
    # The difference of two normal probabilities loses digits where mu is small.
    epsilons[spends] = high * (1 + 1e-12 + 4e-15 / at)
    return epsilons


def membership_auc(member_losses: ArrayLike, other_losses: ArrayLike) -> float:
    """Return how well a loss threshold tells members from others: the area under its ROC curve.

    The probability that a random member has a smaller loss than a random other record, ties
    counted half (Mann-Whitney); 1/2 is guessing. The attack is that of Yeom et al. 2018
    (https://arxiv.org/abs/1709.01604) and Sablayrolles et al. 2019
    (https://arxiv.org/abs/1908.11229): one attack, hence a lower bound on what leaks.

    >>> membership_auc([0.1, 0.2], [0.2, 0.3])
    0.875

    Args:
        member_losses: (members,) losses of records that were trained on, any unit.
        other_losses: (others,) losses of fresh records of the same distribution.
    Raises:
        BadInputError: One of them is empty or holds a NaN; infinite losses are fine.
    """
    from scipy import stats  # 170 modules, which no light command needs

    members = _vector("member_losses", member_losses, finite=False)
    others = _vector("other_losses", other_losses, finite=False)
    if len(members) == 0 or len(others) == 0:
        raise BadInputError(
            f"membership needs losses on both sides, got {len(members)} and {len(others)}",
            fix="give the data a test part",
        )
    ranks = stats.rankdata(np.concatenate([members, others]))  # ties share their mean rank
    smallest = len(members) * (len(members) + 1) / 2
    larger = (ranks[: len(members)].sum() - smallest) / (len(members) * len(others))
    return float(1 - larger)


def report(
    mu: ArrayLike,
    delta: float,
    member_losses: ArrayLike,
    other_losses: ArrayLike,
    *,
    steps_covered: int | None = None,
    num_bins: int = 50,
) -> dict[str, Any]:
    """Return the figures of a run as JSON values, ``private`` first, which says to keep them.

    >>> figures = report([0.2, 0.1], 1e-5, [0.1, 0.2], [0.2, 0.3])
    >>> figures["private"]
    'figures about single private records: do not publish'
    >>> figures["membership"]["auc"]
    0.875

    Args:
        mu: (records,) values of ``per_instance_mu``.
        delta: In (0, 1).
        member_losses: (members,) losses of records that were trained on, nats.
        other_losses: (others,) losses of records that were not.
        steps_covered: Number of steps that ``mu`` is about, where a resumed run lost the others.
        num_bins: Bins of each histogram, equally wide from 0 to the largest value.
    Raises:
        BadInputError: A value is missing, negative or not a number.
    """
    values = _vector("mu", mu)
    if len(values) == 0:
        raise BadInputError("there is no record to report on", fix="give at least one mu")
    epsilons = per_instance_epsilon(values, delta)
    members, others = np.asarray(member_losses), np.asarray(other_losses)
    return {
        "private": PRIVATE,
        "records": len(values),
        "steps_covered": steps_covered,
        "mu": _distribution(values, num_bins),
        "epsilon": {"delta": float(delta), **_distribution(epsilons, num_bins)},
        "membership": {
            "attack": "loss threshold",
            "auc": membership_auc(members, others),
            "members": members.size,
            "others": others.size,
        },
        "source": "Golatkar et al. 2022, appendix C; full-batch Gaussian noise, add or remove one",
    }


def _distribution(values: Array, num_bins: int) -> dict[str, Any]:
    """Return histogram, mean and quantiles; every value lies in a bin."""
    top = float(values.max())
    counts, edges = np.histogram(values, bins=num_bins, range=(0.0, top if top > 0 else 1.0))
    return {
        "mean": float(values.mean()),
        "quantiles": {
            f"{share:g}": float(value)
            for share, value in zip(QUANTILES, np.quantile(values, QUANTILES))
        },
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _log_delta(mu: Array, epsilon: Array) -> Array:
    """Return the logarithm of the smallest delta at these epsilons, elementwise."""
    top = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
    bottom = epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)
    # Cancels to nothing far out only, where the first term is tiny itself.
    return top + np.log(np.maximum(-np.expm1(np.minimum(bottom - top, 0.0)), 1e-300))


def _vector(name: str, values: ArrayLike | Sequence[float], *, finite: bool = True) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise BadInputError(f"{name} has shape {array.shape}, not (records,)")
    wrong = ~np.isfinite(array) if finite else np.isnan(array)
    if wrong.any():
        raise BadInputError(
            f"{name} holds {int(wrong.sum())} values that are not numbers",
            fix="look for records with infinite or missing entries",
        )
    return array

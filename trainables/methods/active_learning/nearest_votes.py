"""Private records vote for the public records nearest to them, under Laplace noise.

NearPrivate, Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 3.3 and algorithm 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning.selectors import most_uncertain

#: L1 sensitivity of the counts under add-or-remove-one, by who votes; ``voters`` says why.
SENSITIVITY: Mapping[str, int] = MappingProxyType({"all": 1, "threshold": 1, "top_k": 2})
#: A record whose squared norm is larger, or not a number, has no distance to anything.
LARGEST_SQUARE = 1e300
#: Pairs of a private and a public record that are looked at in one go.
_PAIRS = 1 << 22


def _squares(differences: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares over dimension 0, one term after the other.

    Each operation works on single elements and is rounded by itself, so that a result depends on
    its own terms alone. The order and the fusing of a library's sum or matrix product depend on
    how many others are computed with it.
    """
    total = torch.zeros_like(differences[0])
    for one in differences:
        total += one * one
    return total


def nearest(private: torch.Tensor, public: torch.Tensor, *, block: int = 2048) -> torch.Tensor:
    """Return the public point that is nearest to each private point, in L2 distance.

    Of equally near ones it is the first. Matrix products only rule out what is surely farther
    away; distances that decide are computed pair by pair.

    >>> nearest(torch.tensor([[0.9], [5.0], [0.5]]), torch.tensor([[0.0], [1.0]])).tolist()
    [1, 1, 0]

    Guarantees:
        The vote of a record is a function of that record and of ``public`` alone, to the last
        bit: not of the other private records, of their number or of the block it is computed in.
        The votes themselves are private.

        Not covered: what made the points. A network that embeds records in batches rounds
        differently as batches differ.

    Args:
        private: Projected embeddings of the private records, (n, p), any float dtype; n may be 0.
            One that is not finite, or beyond 1e150, votes for point 0.
        public: Those of the public records, (m, p), m at least 1. One that is not finite, or beyond
            1e150, is nearest to nothing.
        block: Private records that are compared at once, at most.
    Returns:
        Indices into ``public``, int64 (n,) on the CPU.
    Raises:
        BadInputError: There is no public point.
    """
    if len(public) == 0:
        raise BadInputError("there is no public point to vote for")
    votes = torch.zeros(len(private), dtype=torch.int64)
    b = public.to(private.device, torch.float64)
    usable = _squares(b.T).le(LARGEST_SQUARE).nonzero()[:, 0]
    if len(usable) == 0:
        return votes
    b = b[usable]
    block = max(1, min(block, _PAIRS // len(b)))
    for begin in range(0, len(private), block):
        a = private[begin : begin + block].double()
        measurable = _squares(a.T).le(LARGEST_SQUARE)
        # A record that votes for nothing in particular still takes part, as zero.
        nearest_rows = usable[_nearest_of_block(torch.where(measurable[:, None], a, 0.0), b)]
        votes[begin : begin + block] = torch.where(measurable, nearest_rows, 0).cpu()
    return votes


def _nearest_of_block(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the row of ``b`` that is nearest to each row of ``a``, both float64 and in range."""
    # |a - b|^2 - |a|^2 = |b|^2 - 2ab, be it summed in any order or fused, is off by no more than
    # slack (|a|^2 + |b|^2), and so is a distance that is computed pair by pair; one multiple of it
    # covers both, with room to spare, and ``tiny`` covers what is too small for relative bounds.
    slack, tiny = 32 * (a.shape[1] + 8) * torch.finfo(torch.float64).eps, 1e-290
    product = (a @ b.T).mul_(-2)
    own, other = _squares(a.T), _squares(b.T)
    bound = torch.add(product, other * (1 + slack)).amin(dim=1) + 2 * slack * own + tiny
    row, column = product.add_(other * (1 - slack)).le(bound[:, None]).nonzero(as_tuple=True)
    distance = torch.zeros(len(row), dtype=torch.float64, device=a.device)
    for mine, theirs in zip(a.T, b.T):
        difference = mine[row] - theirs[column]
        distance += difference * difference
    least = torch.full_like(own, torch.inf).scatter_reduce_(0, row, distance, "amin")
    ties = distance == least[row]
    first = torch.full(own.shape, len(b), dtype=torch.int64, device=a.device)
    return first.scatter_reduce_(0, row[ties], column[ties], "amin")


def counts(votes: torch.Tensor, num: int) -> torch.Tensor:
    """Return how many votes each public point has.

    >>> counts(torch.tensor([2, 0, 2]), 4).tolist()
    [1, 0, 2, 0]

    Guarantees:
        A record that votes adds 1 to one count, and removing it takes that away. The counts
        themselves are not private.

    Args:
        votes: Points that are voted for, int64 (v,), in [0, num); v may be 0.
        num: Public points.
    Returns:
        int64 (num,).
    Raises:
        ValueError: A vote is for a point that there is not.
    """
    totals = torch.bincount(votes, minlength=num)
    if len(totals) > num:
        raise ValueError(f"a vote is for a point beyond the {num} there are")
    return totals


def voters(
    kind: str, uncertainty: torch.Tensor, *, threshold: float | None = None, k: int | None = None
) -> torch.Tensor:
    """Return which private records vote.

    ``all`` of them; those whose uncertainty is at least a public ``threshold``; or the ``top_k``
    most uncertain, as in algorithm 2 of Zhao et al. 2020.

    >>> voters("top_k", torch.tensor([0.1, 0.7, 0.7, 0.9]), k=2).tolist()
    [False, True, False, True]

    Guarantees:
        The counts of these voters move by at most ``SENSITIVITY[kind]`` in L1 when a record is
        added or removed. With ``all`` and ``threshold`` a record votes whoever else is there, so
        that adding one adds at most 1 to one count: sensitivity 1. With ``top_k``, a record that
        is added among the k most uncertain drives the last of them out: one count rises and
        another falls, by 1 each: sensitivity 2, where the paper charges 1. Ties are
        broken by the order of the rows, which adding a record does not change; where there are
        fewer than k records, one more adds one vote.

        Holds if the uncertainty of a record is a function of that record and of public or released
        values alone, and the threshold and k are public.

    Args:
        kind: A key of ``SENSITIVITY``.
        uncertainty: Larger is less certain, float (n,). One that is not a number is under every
            threshold, and less than all others.
        threshold: Needed by ``threshold``.
        k: Needed by ``top_k``; n or more: all vote.
    Returns:
        bool (n,).
    Raises:
        BadInputError: The kind is unknown, or what it needs is missing.
    """
    if kind == "all":
        return torch.ones_like(uncertainty, dtype=torch.bool)
    if kind == "threshold" and threshold is not None:
        return uncertainty >= threshold
    if kind == "top_k" and k is not None:
        chosen = torch.zeros_like(uncertainty, dtype=torch.bool)
        chosen[most_uncertain(uncertainty, k)] = True
        return chosen
    raise BadInputError(
        f"voters {kind!r} cannot be chosen with threshold={threshold} and k={k}",
        fix="use all, threshold with a threshold, or top_k with a k",
    )


def noisy_counts(
    counts: torch.Tensor, scale: float, generator: np.random.Generator
) -> torch.Tensor:
    """Return the counts with independent Laplace noise, continuous as in the event charged for it.

    Guarantees:
        One release of the Laplace mechanism (Dwork and Roth 2014, "The algorithmic foundations of
        differential privacy", theorem 3.6): (sensitivity / scale)-DP, with ``SENSITIVITY`` of those
        who voted. Every point has noise, those without a vote too.

        Holds for a secret generator only (``secret_numpy_generator``). Not covered: the
        discreteness of floating point numbers (``dpsweep.privacy.randomness``).

    Args:
        counts: int64 (num,).
        scale: Sensitivity over epsilon, the b of the density exp(-|x| / b) / 2b; 0 adds nothing
            and protects nothing.
        generator: Secret.
    Returns:
        float64 (num,) on the CPU.
    Raises:
        ValueError: The scale is negative or not finite.
    """
    if not 0 <= scale < math.inf:
        raise ValueError(f"scale must be finite and not negative: {scale}")
    noise = generator.laplace(0.0, scale, size=len(counts))
    return counts.cpu().double() + torch.from_numpy(noise)


def largest(noisy: torch.Tensor, num: int) -> torch.Tensor:
    """Return the indices of the ``num`` largest, largest first, the first of equal ones first.

    >>> largest(torch.tensor([0.5, 3.0, -1.0, 3.0]), 3).tolist()
    [1, 3, 0]

    Guarantees:
        Post-processing: as private as the noisy counts that are given.

    Args:
        noisy: float (n,).
        num: How many; all where there are fewer.
    Returns:
        int64 (min(num, n),).
    """
    return torch.argsort(noisy, descending=True, stable=True)[:num]

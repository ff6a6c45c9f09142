"""Which public records are worth a label: uncertain ones, diverse ones, or any.

Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, sections 3.1 and 3.2). Records are chosen by
what a released model says of them, which is post-processing of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning.dp_pca import principal_components
from dpsweep.trainables.networks.torch_process import torch_threads

UncertaintyName = Literal["entropy", "margin"]


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of softmax(logits), nats: 0 if certain, log(c) if all classes are alike.

    >>> [round(h, 4) for h in entropy(torch.tensor([[0.0, 0.0], [900.0, -900.0]])).tolist()]
    [0.6931, 0.0]

    Guarantees:
        Each is a function of its own row; on public rows and a released model, it costs nothing.

    Args:
        logits: (n, c), any float dtype.
    Returns:
        float64 (n,), not a number where logits are not.
    """
    return torch.special.entr(torch.softmax(logits.double(), dim=1)).sum(dim=1)


def margin(logits: torch.Tensor) -> torch.Tensor:
    """Return the difference of the two largest logits: 0 if two classes are equally likely.

    >>> margin(torch.tensor([[1.0, 4.0, 2.5], [3.0, 3.0, 0.0]])).tolist()
    [1.5, 0.0]

    Guarantees:
        Each is a function of its own row; on public rows and a released model, it costs nothing.

    Args:
        logits: (n, c), c at least 2, any float dtype.
    Returns:
        float64 (n,), at least 0, not a number where logits are not.
    Raises:
        BadInputError: There is only one class.
    """
    if logits.shape[1] < 2:
        raise BadInputError(f"a margin needs logits of two classes, not of {logits.shape[1]}")
    two = logits.double().topk(2, dim=1).values
    return two[:, 0] - two[:, 1]


def uncertainty(logits: torch.Tensor, by: UncertaintyName) -> torch.Tensor:
    """Return ``entropy``, or ``margin`` with its sign changed: larger is less certain.

    Args:
        logits: (n, c), any float dtype.
        by: ``entropy`` or ``margin``.
    Returns:
        float64 (n,).
    Raises:
        BadInputError: It is neither.
    """
    if by == "entropy":
        return entropy(logits)
    if by == "margin":
        return -margin(logits)
    raise BadInputError(f"uncertainty is measured by entropy or margin, not by {by!r}")


def most_uncertain(uncertainty: torch.Tensor, num: int) -> torch.Tensor:
    """Return the rows of the ``num`` largest, largest first, the first of equal ones first.

    >>> most_uncertain(torch.tensor([0.1, 0.7, float("nan"), 0.7]), 2).tolist()
    [1, 3]

    Args:
        uncertainty: float (n,); what is not a number comes last.
        num: How many; all where there are fewer.
    Returns:
        int64 (min(num, n),).
    """
    ranked = uncertainty.masked_fill(uncertainty.isnan(), -torch.inf)
    return torch.argsort(ranked, descending=True, stable=True)[:num]


def random_rows(n: int, num: int, seed: int) -> torch.Tensor:
    """Return ``num`` of ``n`` rows at random, without repetition; fewer are the first of more.

    Args:
        n: Rows that there are.
        num: How many; all where there are fewer.
        seed: Public, at least 0.
    Returns:
        int64 (min(num, n),).
    """
    return torch.from_numpy(np.random.default_rng(seed).permutation(n)[:num])


@dataclass(frozen=True)
class Clusters:
    """Rows that were picked from clusters.

    Attributes:
        rows: The picks, int64 (c e,): cluster by cluster, the nearest to its centre first, then
            those that fill up for clusters which are too small. All different.
        cluster: The cluster that each pick belongs to, int64 (c e,).
        central: The row nearest to each centre, int64 (c,).
    """

    rows: torch.Tensor
    cluster: torch.Tensor
    central: torch.Tensor

    def first(self, num: int) -> torch.Tensor:
        """Return ``num`` of the picks, spread over clusters: of each the nearest first.

        Returns:
            int64 (min(num, len(rows)),), in turns over the clusters.
        """
        seen: dict[int, int] = {}
        turns = []
        for cluster in self.cluster.tolist():
            turns.append(seen.setdefault(cluster, 0))
            seen[cluster] += 1
        order = np.lexsort((self.cluster.numpy(), np.array(turns, dtype=np.int64)))
        return self.rows[torch.from_numpy(order[:num])]


@contextmanager
def _repeatable() -> Iterator[None]:
    """One thread, as the order in which threads add up differs; no warning of repeated points."""
    from sklearn.exceptions import ConvergenceWarning

    with torch_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def diverse_public(
    embeddings: torch.Tensor,
    uncertainty: torch.Tensor,
    *,
    num_uncertain: int,
    num_components: int,
    num_clusters: int,
    num_each: int,
    seed: int,
) -> Clusters:
    """Return uncertain records of all kinds (DiversePublic, Zhao et al. 2020, algorithm 1).

    Principal components of all embeddings; the most uncertain records are projected on them and
    clustered by k-means; of each cluster, the records nearest to its centre are taken. Where a
    cluster has too few, those nearest to the centre of whichever cluster has most left take their
    place.

    Guarantees:
        A function of its arguments. With embeddings and uncertainties of public records under a
        released model, it is post-processing and costs nothing.

    Args:
        embeddings: Activations before the logits, finite, (n, d), any float dtype.
        uncertainty: Larger is less certain, float (n,).
        num_uncertain: k, the records that are clustered; all where there are fewer.
        num_components: p, dimensions to cluster in, at most d and n.
        num_clusters: c, at most the records that are clustered.
        num_each: e, the records that are taken of a cluster.
        seed: Public, at least 0.
    Returns:
        min(c e, k, n) different rows; the same for the same arguments.
    Raises:
        BadInputError: The numbers do not fit together, or an embedding is not finite.
    """
    from sklearn.cluster import KMeans

    points = embeddings.detach().cpu().double().numpy()
    candidates = most_uncertain(uncertainty.detach().cpu(), num_uncertain).numpy()
    _refuse(points, len(candidates), num_components, num_clusters, num_each)
    # RandomState itself takes 32 bits only.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    with _repeatable():
        centred = points - points.mean(axis=0)
        moment = torch.from_numpy(centred.T @ centred)
        projected = centred[candidates] @ principal_components(moment, num_components).numpy()
        fitted = KMeans(num_clusters, n_init=1, random_state=random).fit(projected)
    labels, centres = fitted.labels_.astype(np.int64), fitted.cluster_centers_
    distance = np.square(projected - centres[labels]).sum(axis=1)
    order = np.lexsort((np.arange(len(labels)), distance, labels))
    members = np.split(order, np.cumsum(np.bincount(labels, minlength=num_clusters))[:-1])
    picks = _pick(members, num_each)
    central = [
        # Repeated points can leave a cluster empty.
        m[0] if len(m) else np.square(projected - centre).sum(axis=1).argmin()
        for m, centre in zip(members, centres)
    ]
    return Clusters(
        torch.from_numpy(candidates[picks]),
        torch.from_numpy(labels[picks]),
        torch.from_numpy(candidates[np.array(central, dtype=np.int64)]),
    )


def _refuse(points: np.ndarray, count: int, components: int, clusters: int, each: int) -> None:
    """Raise for numbers that do not fit together; ``count`` records are clustered."""
    if not 1 <= components <= min(points.shape):
        raise BadInputError(
            f"{components} principal components cannot be had of {len(points)} public records with "
            f"{points.shape[1]} features",
            fix=f"ask for 1 to {min(points.shape)}",
        )
    if not 1 <= clusters <= count:
        raise BadInputError(
            f"{clusters} clusters cannot be made of {count} uncertain public records",
            fix="ask for fewer clusters, or for more uncertain records",
        )
    if each < 1:
        raise BadInputError(f"{each} records of each cluster are none", fix="ask for at least 1")
    broken = len(points) - int(np.isfinite(points).all(axis=1).sum())
    if broken:
        raise BadInputError(
            f"embeddings of {broken} of {len(points)} public records are not finite",
            fix="start from a model that has not diverged",
        )


def _pick(members: list[np.ndarray], num_each: int) -> np.ndarray:
    """Return ``num_each`` members of each cluster, and others for those that have fewer.

    Args:
        members: Candidates of each cluster, the nearest to its centre first.
        num_each: How many of each.
    """
    picks = [int(one) for cluster in members for one in cluster[:num_each]]
    rest = [cluster[num_each:].tolist() for cluster in members]
    for _ in range(len(members) * num_each - len(picks)):
        left = max(rest, key=len)
        if not left:
            break
        picks.append(left.pop(0))
    return np.array(picks, dtype=np.int64)

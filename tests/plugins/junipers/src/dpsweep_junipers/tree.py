"""Tree of noisy sums (Chan et al. 2010; DP-FTRL, Kairouz et al. 2021): one event for all nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpsweep.foundation.validate import positive, whole
from dpsweep.privacy.events import PrivacyEvent


def _leaves(name: str, value: Any) -> int:
    return whole(name, value, low=1)


@dataclass(frozen=True)
class TreeSums(PrivacyEvent):
    """All nodes of a binary tree over ``leaves`` sums of disjoint records, each with its noise.

    Guarantees:
        A record is in one leaf, so in ``depth`` nodes, with an L2 norm of at most the sensitivity:
        jointly they are one Gaussian mechanism of sensitivity sqrt(depth), also where a leaf is
        chosen by what earlier nodes released. Every prefix sum follows without further cost.
        Add-or-remove-one, where a record keeps its leaf whatever the other records are.

    Attributes:
        noise_multiplier: Noise of each node / L2 sensitivity of one leaf, > 0.
        leaves: Number of leaves, at least 1.
    """

    noise_multiplier: float
    leaves: int

    name: ClassVar[str] = "juniper_tree"
    checks: ClassVar[Any] = {"noise_multiplier": positive, "leaves": _leaves}

    @property
    def depth(self) -> int:
        """Nodes on the way from a leaf to the root, both included."""
        return depth_of(self.leaves)

    @property
    def sampling(self) -> str:
        """Each record enters, and no sampling lowers the cost."""
        return "full_batch"

    def renyi(self, orders: Any) -> Any:
        """Return order * depth / (2 noise_multiplier^2)."""
        return np.asarray(orders * self.depth / (2 * self.noise_multiplier**2))

    def dp_event(self) -> Any:
        """Return the Gaussian that it is."""
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.noise_multiplier / math.sqrt(self.depth))

    def gaussian_variance(self) -> float:
        """Return that Gaussian's variance: pld composes it exactly with others."""
        return self.noise_multiplier**2 / self.depth


def depth_of(leaves: int) -> int:
    """Return the depth of a tree, in nodes.

    >>> [depth_of(n) for n in (1, 2, 3, 8, 9)]
    [1, 2, 3, 4, 5]
    """
    return (leaves - 1).bit_length() + 1

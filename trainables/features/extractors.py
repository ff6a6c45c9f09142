"""Extractors and norms that are built of torch's own layers, so that exports load without dpsweep.

An extractor is a function of one record alone; ``dpsweep.trainables.features.spec`` puts it
together
with its norm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from dpsweep.foundation.errors import ModelError

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo

#: Keeps 0 / 0 away and changes no other norm: the squares of float32 features are far above it.
L2_EPS = 1e-30
#: torch's default, and the one of Tramer & Boneh (2021).
GROUP_EPS = 1e-5


def build_identity(settings: Mapping[str, Any], info: DatasetInfo) -> nn.Module:
    """Return a network that flattens a record and changes nothing else."""
    return nn.Flatten()


def norm_layers(norm: str, shape: tuple[int, ...]) -> list[nn.Module]:
    """Return the layers that normalise one record's features, without weights to train.

    ``l2`` divides by the L2 norm over all features: ``RMSNorm`` with the weight 1 / sqrt(d) is
    x / sqrt(|x|^2 + d eps). A record of zeros stays zero. ``group:G`` subtracts the mean and
    divides by the standard deviation of each of G groups of channels (Wu & He 2018,
    https://arxiv.org/abs/1803.08494).

    Args:
        norm: ``none``, ``l2`` or ``group:G``.
        shape: Shape of one record's features, (channels, ...).
    Raises:
        ModelError: There is no such norm, or its groups do not divide the channels.
    """
    if norm == "none":
        return []
    if norm == "l2":
        layer = nn.RMSNorm(list(shape), eps=L2_EPS)
        nn.init.constant_(layer.weight, 1 / math.sqrt(math.prod(shape)))
        return [layer]
    kind, _, count = norm.partition(":")
    if kind != "group" or not count.isdecimal() or int(count) < 1:
        raise ModelError(f"unknown feature norm {norm!r}", fix="known: none, l2, group:G")
    groups, channels = int(count), shape[0]
    if channels % groups:
        divisors = [str(g) for g in range(1, channels + 1) if channels % g == 0]
        raise ModelError(
            f"{groups} groups do not divide the {channels} channels of the features",
            fix=f"one of {', '.join(divisors)} groups",
        )
    if math.prod(shape) == groups:
        raise ModelError(
            f"{groups} groups of one value each: normalising would leave only zeros",
            because=f"the features of one record have shape {shape}",
            fix="use fewer groups, or another norm",
        )
    return [nn.GroupNorm(groups, channels, eps=GROUP_EPS, affine=False)]

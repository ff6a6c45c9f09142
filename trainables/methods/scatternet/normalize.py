"""Normalisation of features over channels: for free per record, or by private statistics.

Tramer & Boneh 2021 (https://arxiv.org/abs/2011.11660), section 2.2 and appendix B, algorithm 2.
Loads no torch until a statistic is computed, so that plans can be made and checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.methods.hyperparameters import LEAST_CLIP

if TYPE_CHECKING:
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

#: Name of the stage on the ledger.
PHASE = "normalize"
_BLOCK = 512

NORMALIZE_HYPERPARAMETERS = (
    Hyperparameter(
        "normalize.kind",
        "str",
        None,
        "group: every record by itself, free of privacy cost; private_data: by noisy channel means "
        "and variances, charged; none. Where absent: group for scatternet, none for the rest.",
        choices=("group", "private_data", "none"),
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "normalize.groups", "int", 27, "Groups of channels; they must divide the channels.", low=1
    ),
    Hyperparameter(
        "normalize.noise_multiplier",
        "float",
        8.0,
        "Noise multiplier of the channel means, and once more of the mean squares.",
        low=0,
        open_low=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "normalize.mean_norm",
        "float",
        0.3,
        "L2 bound on one record's channel means.",
        low=LEAST_CLIP,
    ),
    Hyperparameter(
        "normalize.square_norm",
        "float",
        0.15,
        "L2 bound on one record's channel mean squares.",
        low=LEAST_CLIP,
    ),
    Hyperparameter(
        "normalize.min_variance",
        "float",
        1e-5,
        "Smallest variance of a channel; noise can make an estimate negative.",
        low=0,
        open_low=True,
    ),
)


def normalization_of(hparams: Mapping[str, Any]) -> str:
    """Return ``group``, ``private_data`` or ``none``.

    >>> normalization_of({"normalize.kind": None, "features.name": "scatternet"})
    'group'
    >>> normalization_of({"normalize.kind": None, "features.name": "efficientnet_lite0"})
    'none'
    """
    kind = hparams["normalize.kind"]
    if kind is not None:
        return str(kind)
    return "group" if hparams["features.name"] == "scatternet" else "none"


def statistics_plan(hparams: Mapping[str, Any]) -> Plan:
    """Return the two releases of ``private_data``; no event for the other kinds.

    Two Gaussian mechanisms of multiplier s have the Renyi curve alpha / s^2 (ibid., claim B.5).
    """
    if normalization_of(hparams) != "private_data":
        return Plan(())
    return Plan((EventRun(Gaussian(hparams["normalize.noise_multiplier"]), 2, phase=PHASE),))


def statistic_bound(hparams: Mapping[str, Any], position: int) -> float:
    """Return the L2 bound on what one record adds to the release at ``position``, 0 or 1."""
    return float(hparams[("normalize.mean_norm", "normalize.square_norm")[position]])


def build_front(shape: tuple[int, ...]) -> _BatchNorm:
    """Return (x - mean) / sqrt(variance) per channel as torch's own layer; at first, the identity.

    Args:
        shape: Shape of one record's features, (channels, height, width) or (channels,).
    """
    from torch import nn

    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    return kind(shape[0], eps=0.0, affine=False).eval()


def clipped_channel_sum(
    inputs: torch.Tensor, rows: np.ndarray, *, power: int, max_norm: float, device: str
) -> torch.Tensor:
    """Return ``sum_i clip(m_i)``, m_i the channel means of record i's features to a power.

    Guarantees:
        Each record adds a vector of L2 norm at most ``max_norm`` up to float64 rounding, whatever
        its values; one whose means are not finite adds zero.

    Args:
        inputs: Features, (records, channels, ...), in single or half precision.
        rows: The records that are summed, int64.
        power: 1 for means, 2 for mean squares.
        max_norm: C1 or C2 of algorithm 2.
        device: Where the sum is wanted.
    Returns:
        float64 (channels,).
    """
    import torch

    from dpsweep.trainables.gradients.clipping import clip_factors

    total = torch.zeros(inputs.shape[1], dtype=torch.float64, device=device)
    index = torch.from_numpy(rows).to(inputs.device)
    for begin in range(0, len(index), _BLOCK):
        x = inputs.index_select(0, index[begin : begin + _BLOCK]).to(device, torch.float64)
        means = x.flatten(1).unflatten(1, (len(total), -1)).pow(power).mean(dim=2)
        norms = torch.linalg.vector_norm(means, dim=1)
        # A factor of zero does not clear what is not finite.
        means[~norms.isfinite()] = 0.0
        total += clip_factors(norms, max_norm) @ means
    return total


def set_statistic(
    front: _BatchNorm, position: int, estimate: torch.Tensor, *, min_variance: float
) -> None:
    """Give a front the released means (position 0), then the released mean squares (position 1).

    Args:
        front: Layer of ``build_front``; its state is all that is kept of the releases.
        position: 0 or 1, in this order.
        estimate: Noisy channel statistics, float64 (channels,).
        min_variance: tau of algorithm 2.
    """
    assert front.running_mean is not None
    assert front.running_var is not None
    if position == 0:
        front.running_mean.copy_(estimate)
    else:
        variance = estimate - front.running_mean.double().square()
        front.running_var.copy_(variance.clamp(min=min_variance))

"""Recommended search spaces of scatternet, one per dataset.

Ranges are those that Tramer & Boneh 2021 (https://arxiv.org/abs/2011.11660, table 12 and figure 8)
found good on three datasets: a small clipping norm, large batches with the learning rate scaled by
the batch, and as many epochs as the noise allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.recommended import Recommended

_GROUP = {"normalize.kind": "group"}
_DATA = {"normalize.kind": "private_data"}


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "scatternet",
        "features.name": "scatternet",
        "model.name": "linear",
        "normalize.kind": {"choice": ["group", "private_data"]},
        "normalize.groups": {"choice": [9, 27, 81], "when": _GROUP},
        "normalize.noise_multiplier": {"choice": [6, 8], "when": _DATA},
        "optim.lr": {"loguniform": [0.25, 2]},
        "optim.momentum": 0.9,
        "clip.max_grad_norm": 0.1,
        "batch.expected": {"choice": [128, 256, 512]},
        "train.epochs": {"uniform": [15, 40]},
    }
    return changed(space, changes)


#: Dataset name -> ``search.space`` of a spec.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(),
    "fashion_mnist": _space(batch__expected={"choice": [2048, 4096, 8192, 16384]}),
    "npz": _space(),
    "image_folder": _space(
        optim__lr={"loguniform": [0.125, 1]}, batch__expected={"choice": [256, 512, 1024]}
    ),
}


def _fixed(norm: float, **changes: Any) -> dict[str, Any]:
    """Return one configuration, whose learning rate needs no search (``methods.noise_rates``)."""
    space: dict[str, Any] = {
        "method": "scatternet",
        "features.name": "scatternet",
        "model.name": "linear",
        "normalize.kind": "group",
        "optim.noise_scale": 5,
        "optim.input_norm": norm,
        "optim.momentum": 0.9,
        "clip.max_grad_norm": 0.1,
        "batch.expected": 256,
        "train.epochs": 20,
    }
    return changed(space, changes)


#: Dataset name -> one configuration. Records that are normalised in groups have the root of the
#: number of their features as norm: 81 maps of a quarter of the height and of the width.
FIXED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        ("cifar10", "cifar100", "svhn"), _fixed(125, batch__expected=8192, train__epochs=60)
    ),
    "digits": _fixed(18),
    "fashion_mnist": _fixed(63, batch__expected=8192, train__epochs=40),
}

#: Why each parameter is there, for the comments of starter specs and presets.
WHY: Mapping[str, str] = {
    "method": "DP-SGD on frozen features",
    "features.name": "scatternet (images), efficientnet_lite0, timm/NAME, clip/NAME, or none",
    "features.image_size": "images are resized to this for the network, in pixels",
    "model.name": "linear, or a small network on the features: scatter_cnn, scatter_cnn_deep",
    "normalize.kind": "group (free), private_data (two noisy sums, charged first), or none",
    "normalize.groups": "channel groups of one record's features; divides 81 (grey), 243 (colour)",
    "normalize.noise_multiplier": "sigma_norm: noise of the channel means and mean squares",
    "normalize.mean_norm": "C1: bound on one record's channel means; of private_data only",
    "normalize.square_norm": "C2: bound on one record's mean squares; of private_data only",
    "optim.lr": "base learning rate, for a batch of 512",
    "optim.noise_scale": "sets the learning rate by the noise; 5 suits linear models",
    "optim.input_norm": "norm of one record's normalised features: the root of their number",
    "optim.lr_scaling": "batch: the learning rate is optim.lr times batch.expected / 512",
    "optim.momentum": "a plain value is fixed, not searched",
    "clip.max_grad_norm": "C: bound on one example's gradient; the noise scales with it",
    "batch.expected": "B: expected batch size; the sampling rate is B over the declared records",
    "batch.physical": "examples whose gradients are in memory at once; no privacy effect",
    "train.epochs": "T: the noise is calibrated so that epsilon is spent after them",
    "train.max_steps": "optimizer steps; they win over epochs",
    "train.num_private": "N: private records that are used, chosen without looking at them",
    "train.repeat": "repetitions of each configuration, with their own noise and batches",
}

RECOMMENDED = Recommended(SPACES, WHY, fixed=FIXED)

"""Recommended search spaces of dp_sgd, one per dataset: where to look first, as data.

Private training wants larger batches than usual, a learning rate tuned together with the clipping
norm, and few epochs at a small epsilon (De et al. 2022, https://arxiv.org/abs/2204.13650). Small
models do well: the tanh networks are those of Tramer & Boneh 2021 (https://arxiv.org/abs/2011.11660).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.recommended import Recommended

_COSINE = {"noise.shape": "cosine"}


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "dp_sgd",
        "model.name": {"choice": ["linear", "tanh_cnn"]},
        "optim.lr": {"loguniform": [0.1, 4]},
        "optim.momentum": 0.9,
        "clip.max_grad_norm": {"loguniform": [0.1, 1]},
        "batch.expected": {"choice": [128, 256, 512]},
        "train.epochs": {"uniform": [10, 40]},
        "noise.shape": {"choice": ["constant", "cosine"]},
        "noise.end_ratio": {"uniform": [0.4, 1.5], "when": _COSINE},
    }
    return changed(space, changes)


#: Dataset name -> ``search.space`` of a spec.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(),
    "fashion_mnist": _space(
        optim__lr={"loguniform": [0.1, 8]}, batch__expected={"choice": [1024, 2048, 4096]}
    ),
    "npz": _space(model__name="linear"),
    "image_folder": _space(model__name={"choice": ["tanh_cnn", "tanh_cnn_deep"]}),
}


def _fixed(scale: float, norm: float, **changes: Any) -> dict[str, Any]:
    """Return one configuration, whose learning rate needs no search (``methods.noise_rates``)."""
    space: dict[str, Any] = {
        "method": "dp_sgd",
        "model.name": "linear",
        "optim.noise_scale": scale,
        "optim.input_norm": norm,
        "optim.momentum": 0.9,
        "optim.schedule": "cosine",
        "clip.max_grad_norm": 0.1,
        "batch.expected": 256,
        "train.epochs": 20,
    }
    return changed(space, changes)


#: Dataset name -> one configuration. Norms of images are those of their published pixels; what
#: others have is for whoever knows the records to say.
FIXED: Mapping[str, Mapping[str, Any]] = {
    "digits": _fixed(5, 3.9),
    "fashion_mnist": _fixed(5, 12.7, batch__expected=1024, train__epochs=12),
    "npz": _fixed(5, 1.0),
    "image_folder": _fixed(0.4, 1.0, model__name="tanh_cnn"),
}

#: Why each parameter is there, for the comments of a starter spec.
WHY: Mapping[str, str] = {
    "method": "training method; `dpsweep methods` lists them",
    "model.name": "network: linear, tanh_cnn, tanh_cnn_deep, small_resnet or timm/NAME",
    "optim.lr": "learning rate; wants to be tuned together with max_grad_norm",
    "optim.noise_scale": "sets the learning rate by the noise: 5, or 0.4 if model is not linear",
    "optim.input_norm": "mean norm of a record (1 if not linear); EDIT it: a public number",
    "optim.schedule": "constant, or cosine down to zero",
    "optim.momentum": "a plain value is fixed, not searched",
    "clip.max_grad_norm": "bound on one example's gradient; the noise scales with it",
    "batch.expected": "expected batch size; large ones drown less in noise",
    "train.epochs": "expected passes over the private records; more steps need more noise each",
    "noise.shape": "how the noise moves over the steps; its start is calibrated to the budget",
    "noise.end_ratio": "last noise over first; searched only where `when` holds",
}

RECOMMENDED = Recommended(SPACES, WHY, fixed=FIXED)

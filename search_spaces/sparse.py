"""Recommended search spaces of sparse, one per dataset.

Luo et al. 2021 ("Scalable Differential Privacy with Sparse Network Finetuning"), with their recipe:
C = 1, a classifier that learns faster than the body, linear warm-up, then cosine. They fix the
density at .01, as its choice by private data costs; here the search is accounted for, and epsilon
of a trial is the same for every density. Small images are enlarged to 64 pixels for the published
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.finetuning import NETWORK, WITHOUT_SEARCH
from dpsweep.search_spaces.recommended import Recommended

_BODY = {"sparse.train": ["cls+norm", "all"]}
_MASKED = {"sparse.train": "all"}


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "sparse",
        **NETWORK,
        "sparse.train": {"choice": ["cls", "cls+norm", "all"]},
        "sparse.density": {"loguniform": [0.001, 0.1], "when": _MASKED},
        "sparse.body_lr": {"loguniform": [0.001, 0.3], "when": _BODY},
        "optim.lr": {"loguniform": [0.1, 4]},
        "optim.momentum": 0.9,
        "optim.schedule": "cosine",
        "optim.warmup_fraction": 0.05,
        "clip.max_grad_norm": 1.0,
        "batch.expected": {"choice": [256, 512]},
        "train.epochs": {"uniform": [5, 20]},
    }
    return changed(space, changes)


#: Dataset name -> ``search.space`` of a spec.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(),
    "fashion_mnist": _space(
        batch__expected={"choice": [2048, 4096]}, train__epochs={"uniform": [2, 6]}
    ),
    "npz": _space(),
    "image_folder": _space(),
}


def _fixed(**changes: Any) -> dict[str, Any]:
    """Return one configuration, whose learning rate follows from the noise."""
    space: dict[str, Any] = {
        "method": "sparse",
        **NETWORK,
        "sparse.train": "cls+norm",
        **WITHOUT_SEARCH,
    }
    return changed(space, changes)


#: Dataset name -> one configuration. Norms train, so that it is the paper's smallest choice.
FIXED: Mapping[str, Mapping[str, Any]] = {
    "digits": _fixed(),
    "fashion_mnist": _fixed(train__epochs=1),
    "npz": _fixed(),
    "image_folder": _fixed(),
}

#: Why each parameter is there, for the comments of a starter spec.
WHY: Mapping[str, str] = {
    "method": "DP-SGD on few parameters of a public network; all else stays as it is",
    "model.name": "any network of timm; its weights must be public",
    "model.checkpoint": "published: timm's weights; or a file with others",
    "model.norm": "frozen: BatchNorm keeps its public statistics; group: rebuilt as GroupNorm",
    "model.image_size": "images are resized to this in the network, in pixels",
    "sparse.train": "classifier, norms, the largest convolution weights; or full, or scratch",
    "sparse.density": "share of convolution weights that train; epsilon does not depend on it",
    "sparse.body_lr": "learning rate of all that is not the classifier",
    "optim.lr": "learning rate of the classifier",
    "optim.noise_scale": "sets the learning rate by the noise; .4 where a network trains",
    "optim.input_norm": "1 where the network is not linear",
    "optim.momentum": "a plain value is fixed, not searched",
    "optim.schedule": "down to zero after the warm-up",
    "optim.warmup_fraction": "share of the steps over which the learning rate rises",
    "clip.max_grad_norm": "bound on one example's gradient, over all that trains",
    "batch.expected": "expected batch size; large ones drown less in noise",
    "train.epochs": "expected passes over the private records",
}

RECOMMENDED = Recommended(SPACES, WHY, fixed=FIXED)

"""Recommended search spaces of bitfit, one per dataset: a network with public weights.

Biases want about ten times the learning rate of full finetuning, and the gradient of few
parameters has a small norm: the ranges lie around the settings of Bu et al. 2024
(https://arxiv.org/abs/2210.00036, appendix D.2: Adam, a clipping norm of 0.1, 3 to 10 epochs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.finetuning import NETWORK, WITHOUT_SEARCH
from dpsweep.search_spaces.recommended import Recommended

_TWO_PHASE = {"bitfit.variant": "two_phase"}


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "bitfit",
        **NETWORK,
        "bitfit.variant": {"choice": ["bitfit", "last_layer", "two_phase"]},
        "bitfit.full_epochs": {"choice": [0.5, 1], "when": _TWO_PHASE},
        "optim.name": "adam",
        "optim.lr": {"loguniform": [0.001, 0.03]},
        "clip.max_grad_norm": 0.1,
        "clip.rule": {"choice": ["abadi", "automatic"]},
        "batch.expected": {"choice": [128, 256]},
        "train.epochs": {"uniform": [3, 10]},
    }
    return changed(space, changes)


#: Dataset name -> ``search.space`` of a spec; records must be grey or colour images.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(),
    "fashion_mnist": _space(
        batch__expected={"choice": [512, 1024]}, train__epochs={"uniform": [1, 3]}
    ),
    "npz": _space(),
    "image_folder": _space(),
    "text": {
        "method": "bitfit",
        "model.name": "text//EDIT/encoder",
        "bitfit.variant": {"choice": ["bitfit", "last_layer"]},
        "optim.name": "adam",
        "optim.lr": {"loguniform": [0.0005, 0.02]},
        "clip.max_grad_norm": 0.1,
        "clip.rule": {"choice": ["abadi", "automatic"]},
        "batch.expected": {"choice": [128, 256]},
        "train.epochs": {"uniform": [3, 10]},
    },
}


def _fixed(**changes: Any) -> dict[str, Any]:
    """Return one configuration for images, whose learning rate follows from the noise."""
    space: dict[str, Any] = {
        "method": "bitfit",
        **NETWORK,
        "bitfit.variant": "bitfit",
        "optim.name": "sgd",
        **WITHOUT_SEARCH,
    }
    return changed(space, changes)


#: Dataset name -> one configuration, whose learning rate needs no search
#: (``methods.noise_rates``).
FIXED: Mapping[str, Mapping[str, Any]] = {
    "digits": _fixed(),
    "fashion_mnist": _fixed(train__epochs=1),
    "npz": _fixed(),
    "image_folder": _fixed(),
    "text": {
        "method": "bitfit",
        "model.name": "text//EDIT/encoder",
        "bitfit.variant": "bitfit",
        "optim.name": "sgd",
        "optim.noise_scale": 0.08,
        "optim.input_norm": 1,
        "optim.momentum": 0.9,
        "optim.schedule": "cosine",
        "clip.max_grad_norm": 0.1,
        "batch.expected": 256,
        "train.epochs": 5,
    },
}

#: Why each parameter is there, for the comments of a starter spec.
WHY: Mapping[str, str] = {
    "method": "biases and the classifier of a network that is trained already",
    "model.name": "timm/NAME with public weights, or text/ and the absolute path of an encoder",
    "model.checkpoint": "published: timm's own weights; or a file; they must be public",
    "model.norm": "frozen: BatchNorm keeps its public statistics, and its bias may train",
    "model.image_size": "images are resized to this in the network, pixels",
    "bitfit.variant": "also bitfit_add, full; for transformers lora, adapter",
    "bitfit.full_epochs": "passes in which everything trains, before the biases",
    "optim.name": "sgd or adam",
    "optim.noise_scale": "sets the learning rate by the noise: .4 for images, .08 for texts",
    "optim.input_norm": "1 where the network is not linear",
    "optim.momentum": "a plain value is fixed, not searched",
    "optim.schedule": "constant, or cosine down to zero",
    "optim.lr": "learning rate; about ten times that of full finetuning",
    "clip.max_grad_norm": "bound on one example's gradient, by what trains alone",
    "clip.rule": "abadi: min(1, C / norm); automatic: C / (norm + .01)",
    "batch.expected": "expected batch size; large ones drown less in noise",
    "train.epochs": "expected passes over the private records",
}

RECOMMENDED = Recommended(SPACES, WHY, fixed=FIXED)

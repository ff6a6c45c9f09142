"""Recommended search spaces of adamix, one per dataset.

What Golatkar et al. 2022 (https://arxiv.org/abs/2203.11481) vary: the learning rate, and, at equal
epsilon, more noise with more steps. The step is divided by the adaptive clipping norm, so that one
range of learning rates suits the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.search_spaces.changes import changed
from dpsweep.search_spaces.recommended import Recommended


def _space(**changes: Any) -> dict[str, Any]:
    space: dict[str, Any] = {
        "method": "adamix",
        "adamix.variant": "adamix",
        "features.name": "none",
        "public.shots": 5,
        "noise.noise_multiplier": {"choice": [10, 20, 40]},
        "optim.lr": {"loguniform": [0.0003, 0.03]},
        "optim.step_over_clip": True,
        "optim.average": {"choice": [0, 0.5]},
        "clip.percentile": {"choice": [75, 90]},
        "regularize.weight": 0.01,
    }
    return changed(space, changes)


#: Dataset name -> ``search.space`` of a spec; all need ``data.public.fraction`` above 0.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "digits": _space(),
    "fashion_mnist": _space(features__name="efficientnet_lite0", features__image_size=96),
    "npz": _space(),
    "image_folder": _space(features__name="efficientnet_lite0"),
}


def _fixed(**changes: Any) -> dict[str, Any]:
    """Return one configuration, whose learning rate needs no search (``methods.noise_rates``)."""
    space: dict[str, Any] = {
        "method": "adamix",
        "features.name": "none",
        "public.shots": 5,
        "train.max_steps": 100,
        "optim.noise_scale": 1,
    }
    # Null has a meaning here: the noise is calibrated to the steps.
    return {**changed(space, changes), "noise.noise_multiplier": None}


#: Dataset name -> one configuration. Features have norm 1.
FIXED: Mapping[str, Mapping[str, Any]] = {
    "digits": _fixed(),
    "fashion_mnist": _fixed(features__name="efficientnet_lite0", features__image_size=96),
    "npz": _fixed(),
    "image_folder": _fixed(features__name="efficientnet_lite0"),
}

#: Share of all records that a starter declares public, so that there are shots to draw.
PUBLIC: Mapping[str, float] = {
    "digits": 0.1,
    "fashion_mnist": 0.01,
    "npz": 0.05,
    "image_folder": 0.05,
}

#: Why each parameter is there, for the comments of starter specs and presets.
WHY: Mapping[str, str] = {
    "method": "linear softmax on frozen, L2-normalised features; private and public records",
    "adamix.variant": "adamix, or a baseline, as ngd, private_public_gd (PPGD) or only_public",
    "adamix.public_init": "false: weights start at zero and are pulled towards zero",
    "adamix.adaptive_clip": "false: the clipping norm is clip.max_grad_norm throughout",
    "adamix.projection": "false: noise in all directions",
    "adamix.public_gradient": "false: public records set the start and the clip, not the steps",
    "features.name": "none (raw records), efficientnet_lite0, timm/NAME, clip/NAME, scatternet",
    "features.image_size": "images are resized to this for the network, in pixels",
    "train.num_private": "private records that are used, chosen without looking at them",
    "optim.noise_scale": "sets the learning rate by the noise; 1 where the start is public",
    "noise.target_epsilon": "epsilon of the trial; the number of steps is solved for it",
    "noise.noise_multiplier": "sigma: more buys more steps at the same epsilon; null: by the steps",
    "public.shots": "public records of each class",
    "public.draw": "which public records: the repetitions, the same ones for every method",
    "public.lr": "learning rate of the few-shot solution; the paper keeps the best of several",
    "optim.lr": "learning rate; for adamix it multiplies a sum over records, not a mean",
    "train.max_steps": "full-batch steps",
    "optim.step_over_clip": "true: step divided by the public clipping norm; not in the paper",
    "optim.average": "share of the last iterates that is averaged; free",
    "regularize.weight": "lambda: pull towards the reference weights",
    "clip.max_grad_norm": "fixed clipping norm",
    "clip.factor": "the clipping norm is this many norms of the mean public gradient",
    "reuse.first_share": "share of the steps for the private model; 1: then public records alone",
    "reuse.weight": "lambda of the second phase: pull towards the private model",
    "clip.percentile": "the clipping norm is this percentile of the public gradient norms",
    "projection.fraction": "share of directions that is kept",
}

RECOMMENDED = Recommended(SPACES, WHY, PUBLIC, fixed=FIXED)

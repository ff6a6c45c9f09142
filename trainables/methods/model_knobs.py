"""Which network, from which weights, and how images reach them: in [0, 1] or normalised.

Published weights bring their normalisation. A file says nothing of it, so whoever names the file
says it: ``model.normalize``. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.networks.pretrained.weights import PUBLISHED, WORDS

_OWN = "PACKAGE.MODULE:FUNCTION"
NORMALIZE = Hyperparameter(
    "model.normalize",
    "str",
    None,
    "Images become RGB and are normalised in the network, as weights in a file may want it: "
    "imagenet (mean and deviation of ImageNet) or timm (what timm says of the network). Where "
    "absent, they stay in [0, 1], but for published weights, which bring their own.",
    choices=("imagenet", "timm"),
    optional=True,
)
MODEL_HYPERPARAMETERS = (
    Hyperparameter(
        "model.name",
        "str",
        "linear",
        "Network: linear, tanh_cnn, tanh_cnn_deep, small_resnet, timm/NAME, text/DIRECTORY "
        "(transformers), or your own, PACKAGE.MODULE:FUNCTION.",
        choices=("linear", "tanh_cnn", "tanh_cnn_deep", "small_resnet", "timm/", "text/", _OWN),
    ),
    Hyperparameter(
        "model.norm",
        "str",
        "refuse",
        "What becomes of BatchNorm: refuse it, rebuild it as GroupNorm, or freeze its statistics.",
        choices=("refuse", "group", "frozen"),
    ),
    Hyperparameter(
        "model.checkpoint",
        "str",
        None,
        "Initial weights, which must be public: a file (a torch or safetensors state dict), "
        "published: timm's own, or pretrain: those of the spec's section pretrain.",
        optional=True,
    ),
    Hyperparameter(
        "model.image_size",
        "int",
        None,
        "Images are stretched to a square of this many pixels in the network, without a crop; "
        "where absent, they stay as they are.",
        low=1,
        optional=True,
    ),
    NORMALIZE,
)


def refuse_twice(hparams: Mapping[str, Any]) -> None:
    """Refuse a configuration that normalises images before published weights.

    Raises:
        InfeasibleBudgetError: It does.
    """
    how = hparams.get(NORMALIZE.name)
    if how is not None and hparams["model.checkpoint"] == PUBLISHED:
        raise InfeasibleBudgetError(
            f"{NORMALIZE.name}={how} with model.checkpoint={PUBLISHED}",
            because="published weights bring a normalisation of their own",
            fix=f"add `when: {{model.checkpoint: FILE}}` to {NORMALIZE.name}, or leave it out",
        )


def scale_problems(checkpoints: Sequence[str | None], ways: Sequence[str | None]) -> list[Mistake]:
    """Return what no configuration can be, as ``Method.preflight`` does.

    Args:
        checkpoints: What ``model.checkpoint`` can be.
        ways: What ``model.normalize`` can be.
    """
    if list(checkpoints) != [PUBLISHED]:
        return []
    wrong = "comes on top of that of published weights"
    return [
        Mistake(NORMALIZE.name, f"{how} {wrong}", "remove it") for how in ways if how is not None
    ]


def scale_notes(
    names: Sequence[str], checkpoints: Sequence[str | None], ways: Sequence[str | None]
) -> list[str]:
    """Return a note if weights of a file may get other images than they were trained on.

    Args:
        names: What ``model.name`` can be.
        checkpoints: What ``model.checkpoint`` can be.
        ways: What ``model.normalize`` can be.
    """
    files = [file for file in checkpoints if file not in (None, *WORDS)]
    has_images = any(not name.startswith("text/") for name in names)
    if not files or not has_images or None not in ways:
        return []
    return [
        f"images reach the weights of {files[0]} as they are, in [0, 1]; weights that were trained "
        "on normalised images, as those of ImageNet are, want model.normalize: imagenet, or timm"
    ]

"""Which network, from which weights, and how images reach them: in [0, 1] or normalised.

Published weights bring their normalisation. A file says nothing of it, so whoever names the file
says it: ``model.normalize``. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
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
    "imagenet (mean and deviation of ImageNet), timm (what timm says of the network) or figures, "
    "as 0.5/0.25. Where absent, they stay in [0, 1], but for published weights, which bring their "
    "own.",
    choices=("imagenet", "timm", "MEAN/STD"),
    form=r"[-+0-9.,eE ]+/[-+0-9.,eE ]+",
    optional=True,
)
OPTIONS = Hyperparameter(
    "model.options",
    "str",
    None,
    "Further arguments of timm's network, as {act_layer: gelu}; see timm.create_model.",
    choices=("{NAME: VALUE}",),
    form=r"(?s)\{.*\}",
    optional=True,
)
STEM = Hyperparameter(
    "model.stem",
    "str",
    None,
    "First layers of a ResNet of timm's: cifar, one convolution of 3 x 3 with stride 1 and no "
    "pooling, as images of 32 pixels want it; where absent, timm's own.",
    choices=("cifar",),
    optional=True,
)
#: Those of a network that later versions added: older records have none.
ADDED = (NORMALIZE, OPTIONS, STEM)
MODEL_HYPERPARAMETERS = (
    Hyperparameter(
        "model.name",
        "str",
        "linear",
        "Network: linear, tanh_cnn, tanh_cnn_deep, tanh_cnn_small, small_resnet, timm/NAME, "
        "text/DIRECTORY (transformers), or your own, PACKAGE.MODULE:FUNCTION.",
        choices=(
            "linear",
            "tanh_cnn",
            "tanh_cnn_deep",
            "tanh_cnn_small",
            "small_resnet",
            "timm/",
            "text/",
            _OWN,
        ),
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
    *ADDED,
)


def front_of(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``build_model`` gets of a configuration besides name, seed and weights.

    Args:
        hparams: Values of a configuration; older records have fewer.
    """
    return {
        "norm": hparams["model.norm"],
        "image_size": hparams["model.image_size"],
        **{knob.name.removeprefix("model."): hparams.get(knob.name) for knob in ADDED},
    }


def networks_to_try(possible: Callable[[str], Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each way in which a space can build one network, as arguments of ``build_model``.

    A file of weights stands for none: it is tried elsewhere.

    Args:
        possible: Returns the values that a space can give to a hyperparameter.
    """
    starts = {c for c in possible("model.checkpoint") if c == PUBLISHED} or {None}
    names = ["model.norm", "model.image_size", *(knob.name for knob in ADDED)]
    for start, *values in product(starts, *(possible(name) for name in names)):
        front = front_of(dict(zip(names, values)))
        if start == PUBLISHED and front["normalize"] is not None:
            continue  # refused as a configuration
        yield {**front, "checkpoint": start}


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

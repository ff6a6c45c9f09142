"""Classifiers of timm's with random weights: options of theirs, and a stem for small images."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.networks.pretrained.published_networks import with_size

OPTIONS, STEM = "model.options", "model.stem"
#: What timm's networks raise where images do not suit them.
_MISFITS = (TypeError, ValueError, RuntimeError, AssertionError, ZeroDivisionError)
#: Arguments of ``timm.create_model`` that something else decides, and what.
_DECIDED = {
    "num_classes": "the data say how many classes there are",
    "in_chans": "the data say how many channels there are",
    "img_size": "model.image_size says the size of images",
    "pretrained": "model.checkpoint says the weights",
    "pretrained_cfg": "model.checkpoint says the weights",
    "pretrained_cfg_overlay": "model.checkpoint says the weights",
    "checkpoint_path": "model.checkpoint says the weights",
    "cache_dir": "model.checkpoint says the weights",
    "features_only": "a classifier is trained",
    "scriptable": "models are handed on as graphs",
    "exportable": "models are handed on as graphs",
    "no_jit": "models are handed on as graphs",
}


def options_of(text: str | None) -> dict[str, Any]:
    """Return the arguments for ``timm.create_model`` that ``model.options`` holds.

    >>> options_of('{"stem_width": 32}'), options_of(None)
    ({'stem_width': 32}, {})

    Raises:
        BadInputError: It is no mapping, or something else decides what it says.
    """
    if text is None:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise BadInputError(
            f"{OPTIONS}: {text} is no mapping", fix="write it like {act_layer: gelu}"
        )
    for name in options:
        if name in _DECIDED:
            raise BadInputError(
                f"{OPTIONS}: {name} cannot be set: {_DECIDED[name]}", fix="remove it"
            )
        if "drop" in name:
            raise BadInputError(
                f"{OPTIONS}: {name} has no effect, as dropout is off in every network",
                fix="remove it",
            )
    return options


def timm_classifier(
    name: str,
    num_classes: int,
    channels: int,
    image_size: tuple[int, ...] | None,
    *,
    options: Mapping[str, Any] | None = None,
    stem: str | None = None,
) -> nn.Module:
    """Return timm's classifier with random weights.

    Args:
        name: Name in timm.
        num_classes: Outputs of the classifier.
        channels: Channels of an image.
        image_size: Height and width of an image, pixels; None: timm's own for the network.
        options: Further arguments of ``timm.create_model``.
        stem: ``cifar``: see ``small_stem``.
    Raises:
        ModelError: There is no such network, or it cannot be built so.
    """
    import timm

    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise ModelError(f"timm has no model {name!r}", fix=hint or "see timm.list_models()")
    own = {"num_classes": num_classes, "in_chans": channels}
    try:
        network: nn.Module = with_size(name, image_size, pretrained=False, **own, **(options or {}))
    except Exception as error:  # timm's networks each raise their own kinds
        _refuse_option(name, options or {}, error)
        if not isinstance(error, _MISFITS):
            raise
        shape = "x".join(map(str, (channels, *(image_size or ()))))
        images = f"{shape} images" if image_size else f"images of {channels} channels"
        raise ModelError(
            f"timm/{name} cannot be built for {images}: {error}",
            fix="use another model, or larger images (model.image_size)",
        ) from error
    if stem is not None:
        small_stem(network, f"timm/{name}", channels)
    return network


def _refuse_option(name: str, options: Mapping[str, Any], error: Exception) -> None:
    """Raise a ModelError if it is an option's fault that a network cannot be built."""
    import timm

    if not options:
        return
    said = " ".join(str(error).split())
    unknown = next((option for option in options if f"argument '{option}'" in said), None)
    if unknown is None:
        try:
            timm.create_model(name, pretrained=False)
        except Exception:  # not the fault of the options, then
            return
        raise ModelError(
            f"{OPTIONS}: {json.dumps(dict(options))} does not suit timm/{name}: "
            f"{type(error).__name__}: {said[:200]}",
            fix="correct the values; timm's documentation says what they can be",
        ) from error
    parameters = inspect.signature(type(timm.create_model(name)).__init__).parameters
    names = [
        word for word in parameters if word not in ("self", "kwargs", "device", "dtype", *_DECIDED)
    ]
    raise ModelError(
        f"{OPTIONS}: timm/{name} has no option {unknown!r}",
        fix=did_you_mean(unknown, names)
        or f"it has {', '.join(n for n in names if 'drop' not in n)}",
    ) from error


def small_stem(network: nn.Module, name: str, channels: int) -> None:
    """Replace the first layers of a ResNet by one convolution of 3 x 3 and stride 1, in place.

    No pooling follows. So ResNets are built for images of 32 pixels (He et al. 2016,
    https://arxiv.org/abs/1512.03385, section 4.2), where the stem of ImageNet leaves 8 x 8.

    Args:
        network: Of timm's ResNets, whose stem is ``conv1`` and ``maxpool``.
        name: What it is called in errors.
        channels: Channels of an image.
    Raises:
        ModelError: It has no such stem.
    """
    old, norm = getattr(network, "conv1", None), getattr(network, "bn1", None)
    width = getattr(norm, "num_features", None) or getattr(norm, "num_channels", None)
    if old is None or width is None or not isinstance(getattr(network, "maxpool", None), nn.Module):
        raise ModelError(
            f"{STEM}: cifar replaces the stem of a ResNet (conv1, bn1, maxpool); {name} has none",
            fix=f"leave {STEM} out, or use a ResNet such as timm/resnet18",
        )
    first = nn.Conv2d(channels, int(width), kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
    network.conv1, network.maxpool = first, nn.Identity()

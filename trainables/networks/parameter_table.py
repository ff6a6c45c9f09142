"""Parameters of a network: how many per layer, and the share that are biases.

Networks are built on torch's meta device, where a tensor has a shape and no data, so that the
largest of timm is looked at within seconds and without its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.networks.build import BUILT_IN, build_untreated
from dpsweep.trainables.networks.layers import head_layers
from dpsweep.trainables.networks.own_models import is_own
from dpsweep.trainables.networks.text import TEXT, text_untreated


class Trains(Protocol):
    """Says whether a parameter is trained; see ``hooks.TrainsSome``."""

    def __call__(self, name: str, parameter: nn.Parameter, *, in_head: bool) -> bool:
        """Given a parameter's dotted name, the parameter, and whether the classifier has it."""
        ...


def everything(name: str, parameter: nn.Parameter, *, in_head: bool) -> bool:
    """Say that a parameter is trained."""
    return True


@dataclass(frozen=True)
class Layer:
    """One module and the parameters that it holds itself, not those of its parts.

    Attributes:
        layer: Dotted name, as ``torch.nn.Module.get_submodule`` takes it; empty for the network.
        type: Class.
        num_parameters: Scalars in its parameters.
        num_bias: Those of them in the parameter whose own name is ``bias``.
        num_trainable: Those of them that a method trains.
    """

    layer: str
    type: str
    num_parameters: int
    num_bias: int
    num_trainable: int


@dataclass(frozen=True)
class ParameterTable:
    """The parameters of a network, layer by layer.

    Attributes:
        model: Name as in a spec: ``timm/NAME``, ``text/DIRECTORY`` or a built-in network.
        num_classes: Outputs of the classifier; tokens of a language model.
        channels: Channels of an image; None for text.
        image_size: Height and width of an image, pixels; None: as timm defines the network.
        layers: Every module with parameters of its own, in the order of the network.
        head: Classifier: its layers in ``layers``, by name.
        batch_norms: Names of the BatchNorm layers.
    """

    model: str
    num_classes: int
    channels: int | None
    image_size: int | None
    layers: tuple[Layer, ...]
    head: frozenset[str]
    batch_norms: tuple[str, ...]

    @property
    def num_parameters(self) -> int:
        """Number of scalars in all parameters."""
        return sum(layer.num_parameters for layer in self.layers)

    @property
    def num_trainable(self) -> int:
        """Number of scalars that the method trains."""
        return sum(layer.num_trainable for layer in self.layers)

    @property
    def num_bias(self) -> int:
        """Number of scalars in parameters whose own name is ``bias``."""
        return sum(layer.num_bias for layer in self.layers)

    @property
    def bias_percent(self) -> float | None:
        """100 times ``num_bias`` over ``num_parameters``; None for a network without parameters."""
        return _percent(self.layers)

    @property
    def bias_percent_no_head(self) -> float | None:
        """The same with the classifier left out of both; None where nothing else is there."""
        return _percent(tuple(layer for layer in self.layers if layer.layer not in self.head))

    @property
    def note(self) -> str | None:
        """A line on what stands in the way of training the network as it is, or None."""
        if not self.batch_norms:
            return None
        return (
            f"it has BatchNorm ({len(self.batch_norms)} layers, the first is "
            f"{self.batch_norms[0]}), counted here as any layer; training refuses it unless "
            "model.norm is group or frozen"
        )

    def totals(self) -> dict[str, Any]:
        """Return everything but the layers as plain data."""
        return {
            "model": self.model,
            "num_classes": self.num_classes,
            "channels": self.channels,
            "image_size": self.image_size,
            "num_parameters": self.num_parameters,
            "num_trainable": self.num_trainable,
            "num_bias": self.num_bias,
            "bias_percent": self.bias_percent,
            "bias_percent_no_head": self.bias_percent_no_head,
            "note": self.note,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data; its keys stay as they are."""
        return {**self.totals(), "layers": [asdict(layer) for layer in self.layers]}


def parameter_table(
    name: str,
    num_classes: int | None = None,
    image_size: int | None = None,
    is_trainable: Trains = everything,
    *,
    channels: int = 3,
) -> ParameterTable:
    """Return the parameters of a network, which is built without memory.

    ``bias_percent`` and ``bias_percent_no_head`` are the figures of Bu et al. 2024 (DP-BiTFiT,
    https://arxiv.org/abs/2210.00036), tables 1 and E.1, which use one or the other.

    >>> table = parameter_table("tanh_cnn", num_classes=10, image_size=28, channels=1)
    >>> table.num_parameters, table.num_bias, [layer.num_parameters for layer in table.layers]
    (26010, 90, [1040, 8224, 16416, 330])

    Args:
        name: ``timm/NAME``, ``NAME`` of timm, a built-in network, ``text/DIRECTORY``, or
            ``text/OWNER/NAME`` of the hub.
        num_classes: Outputs of the classifier, at least 1; None: 1000, as ImageNet has; of text see
            ``text_untreated``.
        image_size: Height and width of an image, pixels; None: as timm defines the network.
            Built-in networks need it.
        is_trainable: Says whether a method trains a parameter (``hooks.TrainsSome``); all, by
            default. Not asked about one that its network freezes.
        channels: Channels of an image, at least 1; of no meaning for text, as ``image_size``.
    Raises:
        BadInputError: Unknown name, a size that is none, or a built-in network without one.
        ModelError: The network cannot be built for such images.
    """
    for key, value in (
        ("classes", num_classes),
        ("image size", image_size),
        ("channels", channels),
    ):
        if value is not None and value < 1:
            raise BadInputError(f"{key} must be at least 1, got {value}")
    model_name, is_text = full_name(name), name.startswith(TEXT)
    if is_text:
        with torch.device("meta"):
            model, outputs = text_untreated(model_name, num_classes)
    else:
        outputs = num_classes or 1000
        try:
            with torch.device("cpu" if is_own(model_name) else "meta"):
                model = build_untreated(
                    model_name, outputs, channels=channels, image_size=image_size
                )
        except ModelError as error:
            other = "model" if image_size is None else "image size"
            raise ModelError(error.message, fix=f"use another {other}") from error
    head = head_layers(model)
    return ParameterTable(
        model_name,
        outputs,
        None if is_text else channels,
        None if is_text else image_size,
        layers=tuple(_layers(model, is_trainable, head)),
        head=head,
        batch_norms=tuple(p for p, m in model.named_modules() if isinstance(m, _BatchNorm)),
    )


def full_name(name: str) -> str:
    """Return a network's name as in a spec: ``timm/NAME`` also where ``NAME`` was given.

    >>> full_name("vit_tiny_patch16_224"), full_name("linear")
    ('timm/vit_tiny_patch16_224', 'linear')

    Raises:
        BadInputError: Neither built in, nor one of timm's, nor on text.
    """
    if name in BUILT_IN or is_own(name) or name.startswith(TEXT):
        return name
    import timm

    plain = name.removeprefix("timm/")
    if timm.is_model(plain):
        return f"timm/{plain}"
    names = timm.list_models()
    names = [*BUILT_IN, *names] if plain == name else [f"timm/{one}" for one in names]
    hint = did_you_mean(name, names) or f"known: {', '.join(BUILT_IN)} and timm.list_models()"
    raise BadInputError(f"unknown model {name!r}, {hint}")


def _layers(model: nn.Module, is_trainable: Trains, head: frozenset[str]) -> Iterator[Layer]:
    """Yield the modules that hold parameters; one that several share counts at the first."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        counts = {"num_parameters": 0, "num_bias": 0, "num_trainable": 0}
        has_own = False
        for own_name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            has_own = True
            size = parameter.numel()
            full = f"{path}.{own_name}" if path else own_name
            counts["num_parameters"] += size
            counts["num_bias"] += size if own_name == "bias" else 0
            if parameter.requires_grad and is_trainable(full, parameter, in_head=path in head):
                counts["num_trainable"] += size
        if has_own:
            yield Layer(path, type(module).__name__, **counts)


def _percent(layers: tuple[Layer, ...]) -> float | None:
    total = sum(layer.num_parameters for layer in layers)
    return 100.0 * sum(layer.num_bias for layer in layers) / total if total else None

"""Layers of a network: their kinds, which are the classifier, how norms lie and activate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpsweep.trainables.networks.heads import LinearHeads
from dpsweep.trainables.networks.text import text_head


def set_training_mode(model: nn.Module) -> None:
    """Switch to training mode, except BatchNorm: where one is left, it is frozen."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def head_layers(model: nn.Module) -> frozenset[str]:
    """Return the names of a classifier's last layers and of all modules in them.

    timm says which they are (some networks have two), and so may a user's own; a ``Sequential``
    ends with its own; of transformers it is what follows the encoder (``text_head``). None where
    nothing says so.
    """
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is not None:
        classifier = get_classifier()
        heads = classifier if isinstance(classifier, (tuple, list)) else (classifier,)
    elif isinstance(model, nn.Sequential):
        last = str(len(model) - 1)
        inner = head_layers(model[-1])  # a network behind the resizing of its images
        if inner:
            return frozenset(f"{last}.{path}" for path in inner)
        is_network = any(model[-1].children()) and not isinstance(model[-1], LinearHeads)
        heads = () if is_network else (model[-1],)
    else:
        heads = text_head(model)
    modules = {id(part) for head in heads if isinstance(head, nn.Module) for part in head.modules()}
    return frozenset(path for path, module in model.named_modules() if id(module) in modules)


Kind = Literal["cls", "norm", "conv", "other"]
KINDS: tuple[Kind, ...] = ("cls", "norm", "conv", "other")
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _BatchNorm, _InstanceNorm)


def layer_kinds(model: nn.Module) -> dict[str, Kind]:
    """Return the kind of every layer, by name.

    >>> layer_kinds(nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Linear(2, 2)))
    {'': 'other', '0': 'conv', '1': 'norm', '2': 'cls'}
    """
    head = head_layers(model)
    return {path: _kind(path, module, head) for path, module in model.named_modules()}


def _kind(path: str, module: nn.Module, head: frozenset[str]) -> Kind:
    if path in head:
        return "cls"
    # timm and transformers have classes of their own for this norm.
    if isinstance(module, _NORMS) or "rmsnorm" in type(module).__name__.lower():
        return "norm"
    return "conv" if isinstance(module, nn.Conv2d) else "other"


def own_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield (path, layer, name in the layer, parameter); a shared one once, at the first layer."""
    seen = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield path, module, name, parameter


def is_depthwise(layer: nn.Conv2d) -> bool:
    """Say whether a layer has one kernel for each channel, and zeros around its input.

    >>> is_depthwise(nn.Conv2d(4, 4, 3, groups=4)), is_depthwise(nn.Conv2d(4, 8, 3, groups=4))
    (True, False)
    """
    return 1 < layer.groups == layer.in_channels == layer.out_channels and (
        layer.padding_mode == "zeros"
    )


def trains_channels_last(model: nn.Module, device_type: str) -> bool:
    """Say whether a network is faster with its channels last in memory.

    On CUDA every one with convolutions, above all in bfloat16; on the CPU those with depthwise
    ones, which are slow with channels first.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3))
    >>> trains_channels_last(model, "cuda"), trains_channels_last(model, "cpu")
    (True, False)
    """
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return bool(convs) if device_type == "cuda" else any(map(is_depthwise, convs))


def lay_out(model: nn.Module, device_type: str) -> None:
    """Lay a network's weights out as suits a kind of device; values and shapes stay."""
    if trains_channels_last(model, device_type):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def on_device(model: nn.Module, device: str) -> nn.Module:
    """Return a network on a device, laid out as suits it."""
    lay_out(model, torch.device(device).type)
    return model.to(device)


def is_channels_first_norm(layer: nn.Module) -> bool:
    """Say whether a subclass of LayerNorm normalises dimension 1, as timm's LayerNorm2d does.

    >>> is_channels_first_norm(nn.LayerNorm(3)), is_channels_first_norm(nn.GroupNorm(1, 3))
    (False, False)
    """
    if not isinstance(layer, nn.LayerNorm) or type(layer) is nn.LayerNorm:
        return False
    channels = layer.normalized_shape[0]
    like = next(layer.parameters(), torch.empty(0))
    probe = like.new_zeros(1, channels, 1, 2 if channels == 1 else 1)
    try:
        with torch.no_grad():
            return bool(layer.forward(probe).shape == probe.shape)
    except (RuntimeError, ValueError):
        return False


def activation_within(layer: nn.Module) -> nn.Module | None:
    """Return what activates within timm's norms with activation; None in any other layer."""
    act = getattr(layer, "act", None)
    is_norm = isinstance(layer, (_BatchNorm, nn.GroupNorm, nn.LayerNorm))
    return act if is_norm and isinstance(act, nn.Module) else None


def dropout_within(layer: nn.Module) -> nn.Module | None:
    """Return what follows the weights within timm's norms with activation, often an Identity.

    Its input is the norm's result before the activation.
    """
    drop = getattr(layer, "drop", None)
    return drop if isinstance(drop, nn.Module) and activation_within(layer) is not None else None

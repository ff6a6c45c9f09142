"""Gradients per example of convolutions with standardised weights (timm's ``ScaledStdConv2d``)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from dpsweep.trainables.gradients.weight_products import unfolded


def has_standardized_rule(layer: nn.Module) -> bool:
    """Say whether a layer is one that ``standardized_rule`` is for.

    >>> has_standardized_rule(nn.Conv2d(3, 4, 3))
    False
    """
    layers = sys.modules.get("timm.layers")  # who has such a layer has loaded it
    if layers is None:
        return False
    is_one = type(layer) is layers.ScaledStdConv2d and layer.padding_mode == "zeros"
    return is_one and layer.groups == 1 and isinstance(layer.padding, tuple)


def standardized_rule(
    layer: Any, inputs: list[torch.Tensor], gradient: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    """Return gradients per example by weight, gain and bias: those by the weight that is used.

    The layer uses s g z with z = (w - mean w) r, r = 1 / sqrt(var w + eps), for each output; s is
    its scale and g its gain. For a gradient G by that, the gain's is s sum(G z), and the weight's
    s g r (G - mean G - z mean(G z)). z belongs to no example.

    Args:
        layer: One that ``has_standardized_rule``.
        inputs: Its input, (examples, channels, height, width).
        gradient: Gradient by its output, (examples, outputs, height, width).
    """
    patches = unfolded(layer, inputs[0])
    flat = gradient.flatten(2)  # (examples, outputs, positions)
    by_used = torch.bmm(flat, patches.transpose(1, 2))
    weight = layer.weight.flatten(1)
    variance, mean = torch.var_mean(weight, dim=1, correction=0, keepdim=True)
    inverse = (variance + layer.eps).rsqrt()
    standard = (weight - mean) * inverse
    gain = layer.scale * layer.gain.flatten(1)
    along = (by_used * standard).mean(dim=2, keepdim=True)
    rest = by_used - by_used.mean(dim=2, keepdim=True) - standard * along
    samples = {
        layer.weight: rest * (gain * inverse),
        layer.gain: layer.scale * weight.shape[1] * along,
    }
    if layer.bias is not None:
        samples[layer.bias] = flat.sum(dim=2)
    return samples

"""Front of a pretrained network: images of its size, coloured and normalised as it wants.

Built of torch's classes alone, with nothing to train.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError

#: Mean and standard deviation of ImageNet's images in [0, 1], as most weights were trained with.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def resize_layers(shape: tuple[int, ...], size: int) -> list[nn.Module]:
    """Return what stretches images to a square: enlarged bilinearly, shrunk by averaging.

    >>> [type(layer).__name__ for layer in resize_layers((1, 28, 40), 32)]
    ['Upsample', 'AdaptiveAvgPool2d']

    Args:
        shape: Shape of an image, (channels, height, width).
        size: Height and width wanted, pixels.
    """
    _, height, width = shape
    larger = (max(height, size), max(width, size))
    layers: list[nn.Module] = []
    if larger != (height, width):
        layers.append(nn.Upsample(size=larger, mode="bilinear", align_corners=False))
    if larger != (size, size):
        # Bilinear shrinking would skip pixels.
        layers.append(nn.AdaptiveAvgPool2d(size))
    return layers


def normalize_layer(channels: int, mean: Sequence[float], std: Sequence[float]) -> nn.Conv2d:
    """Return (x - mean) / std as a frozen convolution of one pixel that also makes grey RGB.

    Args:
        channels: 1 (grey) or 3 (colour).
        mean: Mean of each of three channels, of images in [0, 1].
        std: Standard deviation of each.
    """
    means, stds = torch.tensor(mean), torch.tensor(std)
    layer = nn.Conv2d(channels, 3, kernel_size=1, groups=channels)
    bias = layer.bias
    assert bias is not None
    with torch.no_grad():
        layer.weight.copy_((1 / stds).reshape(3, 1, 1, 1))
        bias.copy_(-means / stds)
    return layer.requires_grad_(False)


def figures_of(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation of three channels that ``MEAN/STD`` says.

    >>> figures_of("0.5/0.25")
    ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))

    Args:
        text: Each one number, or three with commas between them; of images in [0, 1].
    Raises:
        BadInputError: They are no such numbers, or a deviation is 0.
    """
    fix = "write MEAN/STD, say 0.5/0.5 or 0.49,0.48,0.45/0.25,0.24,0.26"
    try:
        mean, std = (tuple(map(float, part.split(","))) for part in text.split("/"))
    except ValueError as error:
        raise BadInputError(f"model.normalize: {text} is no MEAN/STD", fix=fix) from error
    if any(len(part) not in (1, 3) for part in (mean, std)):
        raise BadInputError(f"model.normalize: {text} is not of one or three channels", fix=fix)
    if min(std) <= 0:
        raise BadInputError(f"model.normalize: {text} has a deviation that is not above 0", fix=fix)
    return tuple(mean[i % len(mean)] for i in range(3)), tuple(std[i % len(std)] for i in range(3))

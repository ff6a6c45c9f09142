"""Images turned, shifted, mirrored and cropped, as pre-training shows them to a network."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

_SHIFT = 2  # pixels
TURNS = 4  # an image can be turned by 0, 1, 2 or 3 quarters


def turn(images: torch.Tensor, turns: np.ndarray) -> torch.Tensor:
    """Return square images, (batch, channels, size, size), each turned by its quarter turns.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> turn(image.repeat(2, 1, 1, 1), np.array([0, 1])).flatten(1).tolist()
    [[1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 1.0, 3.0]]
    """
    turned = images.clone()
    for quarters in range(1, TURNS):
        chosen = torch.from_numpy(turns == quarters)
        turned[chosen] = torch.rot90(images[chosen], quarters, (2, 3))
    return turned


def augmented(images: torch.Tensor, order: np.random.Generator) -> torch.Tensor:
    """Return images shifted by up to 2 pixels each way, zeros moving in, half of them mirrored.

    Args:
        images: (batch, channels, height, width).
        order: Draws shifts and mirrors.
    """
    count, channels, height, width = images.shape
    padded = nn.functional.pad(images, (_SHIFT,) * 4)
    down, right = order.integers(0, 2 * _SHIFT + 1, (2, count, 1))
    across = np.tile(np.arange(width), (count, 1))
    is_mirrored = order.random(count) < 0.5
    across[is_mirrored] = across[is_mirrored, ::-1]
    rows = torch.from_numpy(np.arange(height) + down)
    columns = torch.from_numpy(across + right)
    examples = torch.arange(count).reshape(-1, 1, 1, 1)
    planes = torch.arange(channels).reshape(1, -1, 1, 1)
    return padded[examples, planes, rows[:, None, :, None], columns[:, None, None, :]]


def view(images: torch.Tensor, order: np.random.Generator) -> torch.Tensor:
    """Return a random view of each image: a crop at full size, maybe mirrored, lighter or darker.

    Crops cover .25 to 1 of the area at ratios of 3:4 to 4:3; contrast, light and half of the
    colours change by up to .4, .2 and .2.

    Args:
        images: (batch, channels, height, width) in [0, 1].
        order: Draws everything.
    """
    count, channels = images.shape[:2]

    def draw(low: float, high: float, *shape: int) -> torch.Tensor:
        values = order.uniform(low, high, (count, *shape))
        return torch.from_numpy(values).to(images.device, images.dtype)

    side, ratio = draw(0.25, 1).sqrt(), draw(-0.144, 0.144).exp()  # ln(4 / 3) / 2
    sides = torch.stack([side * ratio, side / ratio], dim=1).clamp(max=1)
    places = (1 - sides) * draw(-1, 1, 2)
    mirror = draw(-1, 1).sign()
    zero = torch.zeros_like(side)
    rows = [
        torch.stack([sides[:, 0] * mirror, zero, places[:, 0]], dim=1),
        torch.stack([zero, sides[:, 1], places[:, 1]], dim=1),
    ]
    grid = nn.functional.affine_grid(torch.stack(rows, dim=1), list(images.shape), False)
    cropped = nn.functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    contrast, light = draw(0.6, 1.4, 1, 1, 1), draw(-0.2, 0.2, 1, 1, 1)
    tint = draw(-0.2, 0.2, channels, 1, 1) * draw(-1, 1, 1, 1, 1).sign().clamp(min=0)
    mean = cropped.mean(dim=(1, 2, 3), keepdim=True)
    return ((cropped - mean) * contrast + mean + light + tint).clamp(0, 1)


def views_loss(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return alignment and uniformity of two views of the same images (Wang & Isola 2020).

    "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere" (https://arxiv.org/abs/2005.10242): the mean squared distance of the two views of
    an image, plus the logarithm of the mean of exp(-2 distance^2) over pairs of images; outputs are
    brought to norm 1 first. It is the loss of Tang et al. 2023.

    Args:
        one: Outputs for a view of each image, (batch, outputs).
        other: Outputs for another view of each.
    """
    one, other = (nn.functional.normalize(outputs, dim=1) for outputs in (one, other))
    alignment = (one - other).square().sum(dim=1).mean()
    spread = [torch.pdist(outputs).square().mul(-2).exp().mean().log() for outputs in (one, other)]
    return alignment + (spread[0] + spread[1]) / 2


def is_recognised(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return for each image whether the nearest second view is its own, bool (batch,)."""
    one, other = (nn.functional.normalize(outputs, dim=1) for outputs in (one, other))
    nearest = (one @ other.T).argmax(dim=1)
    return nearest == torch.arange(len(one), device=one.device)

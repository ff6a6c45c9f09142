"""Images turned by quarters, shifted and mirrored, as pre-training shows them to a network."""

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

"""Images that are kept as bytes, where a tensor is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from dpsweep.trainables.data.kept.pixels import Pixels

_SELECTED = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_select.default,
    torch.ops.aten.slice.Tensor,
}


class PixelTensor(torch.Tensor):
    """A float32 tensor on the CPU whose values are made of bytes when they are asked for.

    Rows that are chosen by an index or a slice of the first axis are ordinary tensors, and no
    others are made. Any other operation makes all of them.

    Args:
        pixels: The images.
    """

    pixels: Pixels

    @staticmethod
    def __new__(cls, pixels: Pixels) -> PixelTensor:
        """Return the tensor; nothing is read."""
        new: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made: PixelTensor = new(cls, pixels.shape, dtype=torch.float32)
        made.pixels = pixels
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PixelTensor{tuple(self.shape)}"

    def split(self, split_size: int, dim: int = 0) -> Iterator[torch.Tensor]:  # type: ignore[override]
        """Yield blocks of records, each made when its turn comes."""
        assert dim == 0
        for begin in range(0, len(self), split_size):
            yield self[begin : begin + split_size]

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make the rows that an operation needs, and leave the rest to torch."""
        if function in _SELECTED and isinstance(args[0], PixelTensor):
            rows = _rows(function, *args, **(kwargs or {}))
            if rows is not None:
                return _made(args[0].pixels[rows])

        def whole(value: Any) -> Any:
            return _made(value.pixels) if isinstance(value, PixelTensor) else value

        return function(*tree_map(whole, args), **tree_map(whole, kwargs or {}))


def _rows(function: Any, source: PixelTensor, *args: Any, **kwargs: Any) -> Any:
    """Return which records an operation chooses; None if it does something else, too."""
    if kwargs:
        return None
    if function is torch.ops.aten.index.Tensor:
        (index,) = args
        is_first = len(index) == 1 and index[0] is not None and index[0].ndim == 1
        return index[0].cpu().numpy() if is_first else None
    if function is torch.ops.aten.index_select.default:
        axis, index = args
        return index.cpu().numpy() if axis == 0 else None
    defaults: list[Any] = [0, 0, None, 1]
    axis, begin, end, step = [*args, *defaults[len(args) :]]
    return slice(begin, end, step) if axis == 0 else None


def _made(pixels: Pixels) -> torch.Tensor:
    return torch.from_numpy(np.asarray(pixels))

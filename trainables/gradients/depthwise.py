"""Gradients per example of depthwise convolutions, one tap of the kernel at a time.

A depthwise convolution has a kernel of its own for each channel, so the gradient of one of its
entries is a product of two images summed over positions: the gradient by the output, and the input
shifted by the tap. With channels last both lie in memory as they are used, and nothing is unfolded;
taps that only ever meet padding are not computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn


class _Tap(NamedTuple):
    """Where an entry of the kernel meets the input: rows and columns of output and input."""

    output: tuple[slice, slice]
    input: tuple[slice, slice]


class DepthwiseTaps:
    """Per-example gradients of some taps of a depthwise convolution, of all channels.

    Args:
        layer: See ``is_depthwise``.
        pads: Zeros to the left, right, top and bottom of an input.
        size: Height and width of the inputs, pixels.
        out: Height and width of the outputs.
        taps: Which taps, as positions in the flattened kernel. Each meets the input somewhere.
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        pads: tuple[int, int, int, int],
        size: tuple[int, int],
        out: tuple[int, int],
        taps: list[int],
    ) -> None:
        wide, places = layer.kernel_size[1], size[0] * size[1] + 2 * out[0] * out[1]
        #: Bytes of one example's input, gradient and one product.
        self.bytes_each = 4 * layer.in_channels * places
        self._taps = []
        for tap in taps:
            down, right = divmod(tap, wide)
            offsets = down * layer.dilation[0] - pads[2], right * layer.dilation[1] - pads[0]
            ranges = [
                _range(offset, layer.stride[axis], size[axis], out[axis])
                for axis, offset in enumerate(offsets)
            ]
            (rows, from_rows), (columns, from_columns) = ranges
            self._taps.append(_Tap((rows, columns), (from_rows, from_columns)))

    def __call__(self, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradients, float (batch, taps, channels).

        Args:
            x: The layer's input, float (batch, channels, height, width).
            gradient: By its output, of the same batch and channels.
        """
        x, gradient = (t.permute(0, 2, 3, 1).contiguous() for t in (x, gradient))
        sums = x.new_empty(len(x), len(self._taps), x.shape[3])
        for index, (output, source) in enumerate(self._taps):
            product = gradient[:, output[0], output[1]] * x[:, source[0], source[1]]
            torch.sum(product, dim=(1, 2), out=sums[:, index])
        return sums


def _range(offset: int, stride: int, size: int, out: int) -> tuple[slice, slice]:
    """Return which outputs along one axis meet the input, and where.

    Output ``k`` meets the input at ``offset + k * stride``, if that is one of ``size`` places.
    """
    first = max(0, -(offset // stride))
    last = min(out - 1, (size - 1 - offset) // stride)
    begin = offset + first * stride
    return slice(first, last + 1), slice(begin, offset + last * stride + 1, stride)

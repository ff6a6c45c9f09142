"""Gradients per example of large weights, as the products that they are.

The gradient of example n by a weight is G_n A_n^T, G_n the gradient by the layer's output and A_n
its (unfolded) input. Clipping needs the norm of each and one weighted sum of all. So each product
is formed in a small buffer, measured, forgotten, and formed again for the sum; where positions are
few, its norm follows from products between positions, and where they are fewer still, the sum is
one product over examples and positions. No gradient per example is held, but where it is no larger
than what it is formed of (``is_small``). The clipped sum is that of Abadi et al. 2016, algorithm 1
(https://arxiv.org/abs/1607.00133); only the order of the work differs.

Guarantees:
    The norm is that of the product itself, not a bound on it, and clipping by it bounds what an
    example adds. Where products are formed, they are formed twice, by the same operations on the
    same numbers: what was measured is what is added. Where the norm comes from products between
    positions, in double precision, the sum is rounded on another way. ``norms`` then returns the
    most that this can be (a bound of forward error analysis, in parts of the sum of the terms
    |g_t||a_t|), and ``add_clipped`` counts it to the norm: where terms cancel, an example still
    adds at most C (1 + 5e-5).

    Sums over examples are float64. One product over examples and positions rounds by parts of the
    terms |g_t||a_t|, not of their sum: it has at most ``MOST_TERMS`` of them, and an example whose
    terms add up to more than ``MOST_CANCELLED`` times C is scaled down to that. So all m examples
    of a batch round by at most m MOST_TERMS MOST_CANCELLED 2^-53 C there.

    Not covered: a backend that rounds the same product of the same numbers differently each time.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

import torch
from torch import nn

from dpsweep.trainables.devices.numerics import may_skip
from dpsweep.trainables.devices.places import even_block
from dpsweep.trainables.gradients.clipping import (
    MOST_CANCELLED,
    MOST_TERMS,
    product_of_norms,
    row_norms,
)
from dpsweep.trainables.gradients.sums import add_rows

#: Bytes of the products in one block of examples on the CPU: they stay in the cache.
CPU_BLOCK_BYTES = 2**20
#: The same on the GPU, where few large products win.
CUDA_BLOCK_BYTES = 2**26
#: How much a multiplication between positions costs, in those of the product itself.
GRAM_COST = 3
#: Most positions of which the sum is one product; with more, products in float32 are cheaper.
MOST_AT_ONCE = 16
#: Largest relative error of one operation in float32.
EPSILON = 2.0**-24
#: Smaller weights are cheaper as gradients per example.
MIN_ENTRIES = 4096


def block_bytes(device: torch.device) -> int:
    """Return how much of inputs or products one block of examples may hold."""
    return CUDA_BLOCK_BYTES if device.type == "cuda" else CPU_BLOCK_BYTES


class WeightProduct(ABC):
    """The gradients by one weight of every example of a chunk.

    Attributes:
        gradient: Gradient by the layer's output, float (chunk, out, positions).
    """

    _x: torch.Tensor

    def __init__(self, gradient: torch.Tensor) -> None:
        self.gradient = gradient

    @property
    def factors(self) -> list[torch.Tensor]:
        """What the products are formed of, (chunk, ...): gradients by outputs, inputs."""
        return [self.gradient, self._x]

    def __len__(self) -> int:
        return len(self.gradient)

    @abstractmethod
    def inputs(self, begin: int, end: int) -> torch.Tensor:
        """Return the unfolded inputs of some examples, float (examples, columns, positions)."""

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, int]:
        """Rows and columns of one gradient."""

    @property
    def is_small(self) -> bool:
        """Whether the gradients (``each``) take no more memory than what they are formed of.

        They are then better formed once and held in its place.
        """
        rows, columns = self._shape
        return len(self) * rows * columns <= sum(factor.numel() for factor in self.factors)

    @property
    def _by_positions(self) -> bool:
        """Whether positions are so few that products between them are cheaper."""
        rows, columns = self._shape
        return GRAM_COST * self.gradient.shape[2] * (rows + columns) < rows * columns

    @property
    def _at_once(self) -> bool:
        """Whether the sum is one product over examples and positions."""
        return self._by_positions and self.gradient.shape[2] <= MOST_AT_ONCE

    def _blocks(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Yield examples with their gradients by outputs and their inputs, few enough to cache.

        As many each time: products of fewer examples may be rounded otherwise.
        """
        rows, columns = self._shape
        positions = self.gradient.shape[2]
        entries = positions * (rows + columns) if self._by_positions else rows * columns
        budget = block_bytes(self.gradient.device)
        most = max(1, budget // (4 * max(entries, positions * columns)))
        size = even_block(len(self), most)
        for begin in range(0, len(self), size):
            chosen = slice(begin, begin + size)
            yield chosen, self.gradient[chosen], self.inputs(begin, begin + size)

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of each gradient, and how far off its sum may be: float32 (chunk,)."""
        norm = torch.linalg.vector_norm
        norms, rounding = [], []
        part = 2 * EPSILON * (self.gradient.shape[2] + 2)
        for _, g, a in self._blocks():
            if self._by_positions:
                norms.append(_norms_by_positions(g, a))
                terms = (norm(g, dim=1) * norm(a, dim=1)).sum(dim=1)
                rounding.append(part * terms)
                if self._at_once:
                    rounding[-1].clamp_(min=terms / MOST_CANCELLED - norms[-1])
            else:
                norms.append(row_norms(_products(g, a)))
                rounding.append(torch.zeros_like(norms[-1]))
        return torch.cat(norms), torch.cat(rounding)

    def add_to(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """Add the sum of the gradients times ``factors`` (chunk,).

        A factor of zero leaves an example out, whatever its values.

        Args:
            total: Changed in place, float64, contiguous, as many entries as the weight.
            factors: float32 (chunk,).
        """
        is_out = factors == 0
        kept = self if may_skip(is_out) else self._without(is_out)
        if kept._at_once:
            size = MOST_TERMS // kept.gradient.shape[2]
            for begin in range(0, len(kept), size):
                kept._add_at_once(total, factors, begin, begin + size)
            return
        for chosen, g, a in kept._blocks():
            add_rows(total, _products(g, a), factors[chosen])

    def _without(self, is_out: torch.Tensor) -> Self:
        """Return these gradients with zeros in the place of some, whatever they are formed of."""
        kept = copy.copy(self)
        kept.gradient = self.gradient.masked_fill(_as_column(is_out, self.gradient), 0.0)
        kept._x = self._x.masked_fill(_as_column(is_out, self._x), 0.0)
        return kept

    def _add_at_once(
        self, total: torch.Tensor, factors: torch.Tensor, begin: int, end: int
    ) -> None:
        """Add the sum of some examples as one product over examples and positions."""
        g = self.gradient[begin:end] * factors[begin:end, None, None]
        left, right = (t.double().transpose(0, 1).flatten(1) for t in (g, self.inputs(begin, end)))
        # The product first, then the total: what is there already is rounded once.
        total.view(self._shape).add_(left @ right.T)

    def each(self) -> torch.Tensor:
        """Return every gradient, float32 (chunk, entries)."""
        return torch.cat([_products(g, a) for _, g, a in self._blocks()])


def unfolded(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return what each weight of a convolution meets at each position of its output.

    Args:
        layer: With padding in numbers.
        x: Its input, (examples, channels, height, width).
    Returns:
        (examples, columns of the weight, positions), the numbers of ``nn.functional.unfold``.
    """
    if x.is_cuda:
        return _unfolded_by_views(layer, x)
    return nn.functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)


def _unfolded_by_views(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return the same by one copy for all examples; torch launches a kernel for each on CUDA."""
    (tall, wide), (down, across) = layer.kernel_size, layer.padding
    x = nn.functional.pad(x.contiguous(), (across, across, down, down))
    heights, widths = (
        (size - rate * (taps - 1) - 1) // step + 1
        for size, rate, taps, step in zip(
            x.shape[2:], layer.dilation, layer.kernel_size, layer.stride
        )
    )
    example, channel, row, column = x.stride()
    taps = row * layer.dilation[0], column * layer.dilation[1]
    steps = row * layer.stride[0], column * layer.stride[1]
    views = x.as_strided(
        (*x.shape[:2], tall, wide, heights, widths), (example, channel, *taps, *steps)
    )
    return views.reshape(len(x), x.shape[1] * tall * wide, heights * widths)


def _dense(images: torch.Tensor) -> torch.Tensor:
    """Return them without gaps, channels first or last, as ``masked_fill`` leaves them.

    Kernels may round by how numbers lie in memory, and products are formed of a copy again.
    """
    if images.is_contiguous(memory_format=torch.channels_last):
        return images
    return images.contiguous()


def _as_column(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a value per example (examples,) in as many dimensions as its values have."""
    return rows.view(-1, *[1] * (like.dim() - 1))


def _products(g: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return G A^T of each example, (examples, entries).

    Whoever asks sees to full float32 (``devices.numerics.full_float32``), as engines do.
    """
    return torch.bmm(g, a.transpose(1, 2)).flatten(1)


def _norms_by_positions(g: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return |G A^T| = sqrt(sum_st (g_s g_t)(a_s a_t)), s and t positions.

    In double precision, so that its own rounding is below 1e-7 of the sum of terms.
    """
    g, a = g.double(), a.double()
    squares = (torch.bmm(g.transpose(1, 2), g) * torch.bmm(a.transpose(1, 2), a)).sum(dim=(1, 2))
    # Where terms cancel, rounding may leave less than zero; what is not a number stays so.
    return squares.clamp(min=0.0).sqrt().float()


class ConvProduct(WeightProduct):
    """Of a plain ``nn.Conv2d`` (see ``has_product``).

    Args:
        layer: The convolution.
        x: Its input, float (chunk, channels, height, width).
        gradient: Gradient by its output, (chunk, out channels, height, width).
    """

    def __init__(self, layer: nn.Conv2d, x: torch.Tensor, gradient: torch.Tensor) -> None:
        super().__init__(_dense(gradient).flatten(2))
        self._layer, self._x = layer, _dense(x)

    @property
    def _shape(self) -> tuple[int, int]:
        return self._layer.out_channels, self._layer.weight[0].numel()

    def inputs(self, begin: int, end: int) -> torch.Tensor:
        """See ``WeightProduct``."""
        x, layer = self._x[begin:end], self._layer
        if layer.kernel_size == (1, 1) and layer.stride == (1, 1) and not any(layer.padding):
            return x.flatten(2)
        return unfolded(layer, x)


class LinearProduct(WeightProduct):
    """Of a ``nn.Linear``.

    Args:
        layer: The layer.
        x: Its input, float (chunk, ..., in).
        gradient: Gradient by its output, (chunk, ..., out).
    """

    def __init__(self, layer: nn.Linear, x: torch.Tensor, gradient: torch.Tensor) -> None:
        g = gradient.reshape(len(x), -1, layer.out_features).contiguous()
        a = x.reshape(len(x), -1, layer.in_features).contiguous()
        super().__init__(g.transpose(1, 2))
        self._layer, self._x = layer, a.transpose(1, 2)

    @property
    def _shape(self) -> tuple[int, int]:
        return self._layer.out_features, self._layer.in_features

    def inputs(self, begin: int, end: int) -> torch.Tensor:
        """See ``WeightProduct``."""
        return self._x[begin:end]

    @property
    def _by_positions(self) -> bool:
        return self.gradient.shape[2] == 1 or super()._by_positions

    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``WeightProduct``; with one position the norm is |g||a|."""
        if self.gradient.shape[2] != 1:
            return super().norms()
        pair = (self.gradient, self._x)
        sizes = (torch.linalg.vector_norm(p, dim=(1, 2), dtype=torch.float64) for p in pair)
        norms = product_of_norms(*sizes)
        return norms, 2 * EPSILON * norms


def product_of(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> WeightProduct:
    """Return the gradients by a layer's weight, of a layer that has them as products.

    Args:
        layer: See ``has_product``.
        x: Its input, float (chunk, ...).
        gradient: Gradient by its output, (chunk, ...).
    """
    if isinstance(layer, nn.Conv2d):
        return ConvProduct(layer, x, gradient)
    assert isinstance(layer, nn.Linear)
    return LinearProduct(layer, x, gradient)


def has_product(layer: nn.Module) -> bool:
    """Say whether a layer's weight is large, and its gradient a product that is known here.

    >>> has_product(nn.Conv2d(64, 64, 3)), has_product(nn.Conv2d(64, 64, 3, groups=64))
    (True, False)
    """
    if type(layer) is nn.Linear:
        return layer.weight.requires_grad and layer.weight.numel() >= MIN_ENTRIES
    return (
        type(layer) is nn.Conv2d
        and layer.weight.requires_grad
        and layer.weight.numel() >= MIN_ENTRIES
        and layer.groups == 1
        and isinstance(layer.padding, tuple)
        and layer.padding_mode == "zeros"
    )

"""Clipped gradient sums of linear heads in closed form: one head, or many on one shared batch.

Softmax regression has g_i = r_i [x_i; 1]^T with r_i = softmax - onehot, so that
|g_i|^2 = |r_i|^2 (|x_i|^2 + 1), and no per-example gradient is ever formed. Rows are gathered in
blocks into reused buffers, and all products keep the (classes, ..) layout: with few classes it is
twice as fast as (.., classes).

Guarantees:
    Those of ``dpsweep.trainables.gradients.per_example``. Norms and sums are of the same records:
    what storage in half precision or a fixed affine front makes of a record is done before both.
    Norms of records that stay as they are, which torch keeps count of, are computed once
    (``_Norms``). Every block has the same number of rows, the last one with rows of zeros, and sums
    are float64 (``dpsweep.trainables.gradients.sums``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpsweep.trainables.data.kept.pixel_tensors import PixelTensor
from dpsweep.trainables.devices.numerics import may_skip, moved
from dpsweep.trainables.devices.places import filled
from dpsweep.trainables.gradients.clipping import (
    Factors,
    clip_factors,
    norm64,
    product_of_norms,
    row_norms,
)
from dpsweep.trainables.gradients.sums import add_product, chunk_size, tile_of, zero_sums

#: Scale and shift of every entry of a record; None where there is no front.
_Affine = tuple[torch.Tensor, torch.Tensor] | None

#: Bytes of a block of one head on the CPU: more leave the cache between their uses.
CPU_BLOCK_BYTES = 2**22
#: Least and most rows of it; each block costs some sixty small operations.
CPU_BLOCK_ROWS = 32, 512
#: Rows of a block of many heads, whose larger products pay for one beyond the cache.
MANY_HEADS_CPU_BLOCK = 512
#: The same of a block on the GPU, where few large products win.
CUDA_BLOCK_BYTES = 2**28
CUDA_BLOCK_ROWS = 32, 8192
#: Rows that take a head as long as it takes to begin a block, by device.
_ROWS_TO_BEGIN = {"cpu": 32, "cuda": 8192}


def cpu_block(num_features: int) -> int:
    """Return the most rows of a block of one head on the CPU.

    >>> cpu_block(64), cpu_block(3969), cpu_block(3 * 224 * 224)
    (512, 256, 32)
    """
    return _rows_of(CPU_BLOCK_BYTES, num_features, *CPU_BLOCK_ROWS)


def cuda_block(num_features: int) -> int:
    """Return the most rows of a block on the GPU.

    >>> cuda_block(3969), cuda_block(3 * 224 * 224)
    (8192, 416)
    """
    return _rows_of(CUDA_BLOCK_BYTES, num_features, *CUDA_BLOCK_ROWS)


def _rows_of(num_bytes: int, num_features: int, least: int, most: int) -> int:
    """Return how many rows of float32 have at most so many bytes, a multiple of ``least``."""
    rows = num_bytes // (4 * num_features)
    return min(max(rows - rows % least, least), most)


def affine_of(front: _BatchNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (scale, shift) per channel that a BatchNorm without weights is in eval mode."""
    assert front.running_mean is not None
    assert front.running_var is not None
    scale = (front.running_var + front.eps).rsqrt()
    return scale, -front.running_mean * scale


class _Norms:
    """Norms of the records of a source, after the front, for as long as both stay as they are.

    They are computed block by block until an epoch of them has been, then once for all records:
    a short trial pays for no record that it does not draw. Whatever torch writes to the source or
    to the front is seen by its version counter, and they are begun anew. Not seen is what others
    write to the memory behind a tensor, as numpy can.
    """

    def __init__(self) -> None:
        self._of: list[tuple[torch.Tensor, int]] = []
        self._num_seen = 0
        self._norms: torch.Tensor | None = None

    def of(
        self, tensors: Sequence[torch.Tensor], num_rows: int, compute: Callable[[], torch.Tensor]
    ) -> torch.Tensor | None:
        """Return the norms of all records, or None until it pays to have them.

        Args:
            tensors: What they depend on; the first has one row for each record.
            num_rows: Records of the present batch.
            compute: Computes them all.
        """
        is_same = len(tensors) == len(self._of) and all(
            tensor is before and tensor._version == version
            for tensor, (before, version) in zip(tensors, self._of)
        )
        if not is_same:
            self._of = [(tensor, tensor._version) for tensor in tensors]
            self._num_seen, self._norms = 0, None
        if self._norms is None and self._num_seen >= len(tensors[0]):
            self._norms = compute()
        self._num_seen += num_rows
        return self._norms


class _Blocks:
    """Gathers rows into reused buffers: float32 on the device, after the front.

    Args:
        front: Fixed BatchNorm without weights over dimension 1 of a record, or None.
        device: Where the blocks are wanted.
        rows: Records of a block.
    """

    #: Rows of every block; those after the records are zero.
    rows: int

    def __init__(self, front: _BatchNorm | None, device: torch.device, rows: int) -> None:
        self._front, self._device, self.rows = front, device, rows
        self._gathered = torch.empty(0)
        self._wide = torch.empty(0)
        #: Where ``add_product`` widens a block.
        self.tile = torch.empty(0)
        self._norms = _Norms()

    def of(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]]:
        """Yield (records (rows, d), norms (rows,), labels (rows,), number of records in the block).

        Records and norms may be overwritten.
        """
        like = x_source[:1].flatten(1)
        # Records that are kept in a file have no view: flattened, all of them would be read.
        features = None if isinstance(x_source, PixelTensor) else x_source.flatten(1)
        if not _fits(self._gathered, like):
            self._gathered = like.new_empty(self.rows, like.shape[1])
        index = moved(torch.from_numpy(rows), like.device)
        labels = y_source.index_select(0, index.to(y_source.device)).to(self._device)
        affine = self._affine(x_source.shape[1:])
        looked_up = None if features is None else self._norms_of_all(x_source, affine, len(index))
        if looked_up is not None:
            looked_up = looked_up.index_select(0, index.to(self._device))
        for begin in range(0, len(index), self.rows):
            chosen = index[begin : begin + self.rows]
            count = len(chosen)
            if features is None:
                self._gathered[:count] = x_source.index_select(0, chosen).flatten(1)
            else:
                torch.index_select(features, 0, chosen, out=self._gathered[:count])
            x = self._finished(count, affine)
            if looked_up is None:
                norms = row_norms(x)
            else:
                norms = filled(looked_up[begin : begin + self.rows], self.rows)
            yield x, norms, filled(labels[begin : begin + self.rows], self.rows), count

    def _finished(self, count: int, affine: _Affine) -> torch.Tensor:
        """Return the gathered records as a block, with rows of zeros behind them."""
        self._gathered[count:] = 0.0
        x = self._widened(self._gathered.to(self._device))
        if self.tile.shape[1:] != x.shape[1:]:
            self.tile = tile_of(x)
        if affine is not None:
            torch.addcmul(affine[1], x, affine[0], out=x)
        return x

    def _norms_of_all(
        self, source: torch.Tensor, affine: _Affine, num_rows: int
    ) -> torch.Tensor | None:
        """Return the norms of all records in memory, if they are to be had by now."""
        front = self._front
        tensors = [source]
        if front is not None:
            assert front.running_mean is not None
            assert front.running_var is not None
            tensors += [front.running_mean, front.running_var]

        def compute() -> torch.Tensor:
            norms = torch.empty(len(source), device=self._device)
            for begin in range(0, len(source), self.rows):
                records = source[begin : begin + self.rows].flatten(1)
                self._gathered[: len(records)] = records
                x = self._finished(len(records), affine)
                norms[begin : begin + len(records)] = row_norms(x)[: len(records)]
            return norms

        return self._norms.of(tensors, num_rows, compute)

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block in float32, in a buffer of its own if it is in half precision."""
        if x.dtype == torch.float32:
            return x
        if self._wide.shape[1:] != x.shape[1:] or self._wide.device != x.device:
            self._wide = torch.empty(self.rows, x.shape[1], device=x.device)
        return self._wide.copy_(x)

    def _affine(self, shape: torch.Size) -> _Affine:
        """Return the front's (scale, shift) for every entry of a flattened record."""
        if self._front is None:
            return None
        size = shape[1:].numel()
        scale, shift = affine_of(self._front)
        return scale.repeat_interleave(size), shift.repeat_interleave(size)


def _fits(buffer: torch.Tensor, features: torch.Tensor) -> bool:
    return (
        buffer.device == features.device
        and buffer.dtype == features.dtype
        and buffer.shape[1:] == features.shape[1:]
    )


class LinearHeadEngine:
    """Closed form for one linear head; see ``GradientEngine``.

    Args:
        head: The layer; its gradients are wanted where its weights are.
        front: Fixed BatchNorm without weights before it, or None.
        expected_batch: Expected examples of a batch, which blocks are to suit.
        factors: From norms and C to the factor of each example, at most C / norm.
    """

    def __init__(
        self,
        head: nn.Linear,
        front: _BatchNorm | None = None,
        *,
        expected_batch: float = math.inf,
        factors: Factors = clip_factors,
    ) -> None:
        self._head, self._factors = head, factors
        device = head.weight.device
        block = cuda_block if head.weight.is_cuda else cpu_block
        most = block(head.in_features)
        size = chunk_size(expected_batch, most, device, _ROWS_TO_BEGIN)
        self._blocks = _Blocks(front, device, size)

    @torch.no_grad()
    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """See ``GradientEngine``."""
        weight, bias = self._head.weight, self._head.bias
        sums = zero_sums([weight] if bias is None else [weight, bias])
        for x, lengths, labels, count in self._blocks.of(x_source, y_source, rows):
            logits = weight @ x.T if bias is None else torch.addmm(bias[:, None], weight, x.T)
            residual = torch.softmax(logits, dim=0)
            target = labels[None]
            residual.scatter_add_(0, target, residual.new_full(target.shape, -1.0))
            squares = lengths.square_()
            if bias is not None:
                squares += 1.0
            norms = product_of_norms(squares.sqrt_(), norm64(residual, 0))
            broken = ~norms.isfinite()
            norms[count:] = math.inf
            residual *= self._factors(norms, max_grad_norm)
            if not may_skip(broken):
                # A factor of zero does not clear what is not finite; x is the engine's own copy.
                residual.masked_fill_(broken, 0.0)
                x.masked_fill_(broken[:, None], 0.0)
            residual[:, count:] = 0.0
            add_product(sums[0], residual, x, self._blocks.tile)
            if bias is not None:
                sums[1] += residual.sum(dim=1, dtype=torch.float64)
        return sums


class ManyHeadsEngine:
    """Closed form for heads with bias on one shared batch: a gather and a product for all of them.

    The sums are those of one ``LinearHeadEngine`` per head on the same rows, each clipped to
    ``max_grad_norm`` alone: together their sensitivity is sqrt(heads) times that.

    Args:
        heads: Layers of one size on one device.
        front: As for ``LinearHeadEngine``.
        expected_batch: As for ``LinearHeadEngine``.
        factors: As for ``LinearHeadEngine``, from norms (heads, examples).
    """

    def __init__(
        self,
        heads: list[nn.Linear],
        front: _BatchNorm | None = None,
        *,
        expected_batch: float = math.inf,
        factors: Factors = clip_factors,
    ) -> None:
        self._heads, self._factors = heads, factors
        self._num_classes = heads[0].out_features
        device = heads[0].weight.device
        is_cuda, features = heads[0].weight.is_cuda, heads[0].in_features
        most = cuda_block(features) if is_cuda else MANY_HEADS_CPU_BLOCK
        size = chunk_size(expected_batch, most, device, _ROWS_TO_BEGIN)
        self._blocks = _Blocks(front, device, size)

    @torch.no_grad()
    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """See ``GradientEngine``; weight and bias of the first head, then of the second, ..."""
        count, classes = len(self._heads), self._num_classes
        weight = torch.cat([head.weight for head in self._heads])
        bias = torch.cat([head.bias for head in self._heads])
        weight_sum, bias_sum = zero_sums([weight, bias])
        for x, lengths, labels, num in self._blocks.of(x_source, y_source, rows):
            logits = torch.addmm(bias[:, None], weight, x.T)
            residual = torch.softmax(logits.view(count, classes, len(x)), dim=1)
            target = labels.expand(count, 1, len(x))
            residual.scatter_add_(1, target, residual.new_full((1, 1, 1), -1.0).expand_as(target))
            squares = lengths.square_().add_(1.0)
            norms = product_of_norms(squares.sqrt(), norm64(residual, 1))
            broken = ~norms.isfinite()
            norms[:, num:] = math.inf
            residual *= self._factors(norms, max_grad_norm)[:, None]
            if not may_skip(broken):
                # As for one head; but a record that breaks one head alone counts for the others.
                residual.masked_fill_(broken[:, None], 0.0)
                x.masked_fill_(~squares.isfinite()[:, None], 0.0)
            flat = residual.view(count * classes, len(x))
            flat[:, num:] = 0.0
            add_product(weight_sum, flat, x, self._blocks.tile)
            bias_sum += flat.sum(dim=1, dtype=torch.float64)
        pairs = zip(weight_sum.split(classes), bias_sum.split(classes))
        return [total for pair in pairs for total in pair]

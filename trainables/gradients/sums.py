"""Sums over examples in float64, and chunks of one size: what one example more or less can move.

In float32 every addition to a sum of many examples rounds by a part of that sum. One example less
moves all others to other places, where their sum rounds otherwise; on records that are made for it,
by several times the bound of an example (Casacuberta et al. 2022, https://arxiv.org/abs/2207.10635:
4.05 C for 400,000 records in blocks of 512). So every sum over examples is formed in float64 here.

Guarantees:
    Let v_i be what example i adds: a product of float32 numbers that belong to it alone (factor
    times gradient, or scaled residual times features), as a real vector of norm at most
    C' = (1 + 5e-5) C. A product of two float32 numbers is exact in float64, so only additions
    round, each by at most a part u = 2^-53. A term passes through fewer than m additions in a batch
    of m examples, in whatever order and blocks they are added; adding a zero is exact. So each
    entry of a computed sum is within m u times the sum of the sizes of its terms of the real one
    (Higham 2002, "Accuracy and stability of numerical algorithms", section 4.2; u^2 left out), and
    the whole within m u (|v_1| + ... + |v_m|) <= m^2 u C' in L2 norm. The sums of two batches of at
    most m examples that differ in one are apart by at most

        (1 + 2 m^2 u) C' = (1 + 3.6e-5) C' for m = 400,000,

    whatever the records and however many share a chunk. ``clipping.noise_margin`` is this
    bound for any m, with what ``weight_products`` adds to it.

    v_i must be a function of example i alone. Kernels round otherwise for other numbers of rows, so
    every chunk has the same number of rows, the last one with rows of zeros after it, which add
    nothing. Not covered: kernels that round a row otherwise at another place among as many rows.
    On one x86 CPU none was found, to the last bit, for linear heads, tanh_cnn, small_resnet and
    ResNet-18 (``tests/unit/trainables/gradients/test_large_sums.py``), nor for the biases of a
    vision transformer. In MLPs of odd widths (70-71-33-3, by hand on an AMD EPYC) an example's
    gradient moves by up to 1.3e-7 of its norm from a place to the next, that by biases alone as
    well. And where a network has parameters of its own outside of layers, as a vision transformer
    that trains whole, ``torch.func`` differentiates it as a whole, and an example's gradient moves
    by about 1e-6 C with its place. In bfloat16 such a kernel may move a gradient by parts of 2^-8,
    so engines look for one before the first batch, and refuse it
    (``dpsweep.trainables.devices.places``). On H200s the biases of a vision transformer moved by
    1e-7, now and then: with torch 2.15 in float32, with 2.11 in bfloat16, in which products over
    positions are refused on CUDA since; with 2.15 the sparse engine's sums by 2e-8, in two of four
    cases, one of them in bfloat16. Norms were rounded by where in memory a row begins, which is
    mended (``clipping.row_norms``) and was not tried on a GPU since. Other sums along rows of an
    odd number of entries are as torch has them: a loss over an odd number of classes, from 1,024
    on. ``tests/benchmarks/bench_places.py`` looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from dpsweep.trainables.devices.places import VECTOR

#: Bytes of what is widened to float64 at once: on the CPU it stays in the cache, on a GPU each
#: piece costs two kernels, whatever its size.
_TILE_BYTES = {"cpu": 2**21, "cuda": 2**27}
#: Most rows of a left factor with which NumPy's products are faster on the CPU than torch's.
_FEW_ROWS = 20
#: Most multiplications of a product for which OpenBLAS copies neither factor first.
_SMALL_PRODUCT = 10**6
#: Rows that take a network as long as it takes to begin a chunk, by device.
ROWS_TO_BEGIN = {"cpu": 12, "cuda": 64}


def zero_sums(like: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return zeros to add examples up in, one tensor for each, in float64."""
    return [torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in like]


def add_rows(total: torch.Tensor, rows: torch.Tensor, factors: torch.Tensor) -> None:
    """Add the sum of rows times their factors.

    Args:
        total: Changed in place, float64, contiguous, as many entries as a row.
        rows: float32 (examples, entries); finite.
        factors: float32 (examples,).
    """
    flat, factors = total.view(-1), factors.double()
    width = max(1, _TILE_BYTES[rows.device.type] // (8 * max(1, len(rows))))
    tile = rows.new_empty(len(rows), min(width, rows.shape[1]), dtype=torch.float64)
    for begin in range(0, rows.shape[1], width):
        narrow = rows[:, begin : begin + width]
        wide = tile[:, : narrow.shape[1]].copy_(narrow)
        flat[begin : begin + width].addmv_(wide.T, factors)


def add_product(
    total: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    tile: torch.Tensor | None = None,
) -> None:
    """Add ``left @ right``, the sum over examples of products of a column and a row.

    Args:
        total: Changed in place, float64 (a, b).
        left: float32 (a, examples), the small one of the two.
        right: float32 (examples, b); widened a few rows at a time.
        tile: Memory for that, as ``tile_of`` makes it.
    """
    tile = tile_of(right) if tile is None else tile
    left = left.double()
    is_small = total.device.type == "cpu" and len(left) <= _FEW_ROWS
    add = _SmallProduct(total) if is_small else total.addmm_
    for begin in range(0, len(right), len(tile)):
        rows = right[begin : begin + len(tile)]
        add(left[:, begin : begin + len(tile)], tile[: len(rows)].copy_(rows))


class _SmallProduct:
    """Adds products with few rows to a total on the CPU, by NumPy and a few columns at a time.

    Args:
        total: Changed in place, float64 (a, b).
    """

    def __init__(self, total: torch.Tensor) -> None:
        self._total = total.numpy()
        self._product = np.empty_like(self._total)

    def __call__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Add ``left @ right``, float64 (a, examples) and (examples, b)."""
        a, b, product = left.numpy(), right.numpy(), self._product
        most = max(1, _SMALL_PRODUCT // max(1, a.size))
        width = math.ceil(b.shape[1] / max(1, math.ceil(b.shape[1] / most)))
        for begin in range(0, b.shape[1], max(1, width)):
            columns = slice(begin, begin + width)
            np.matmul(a, b[:, columns], out=product[:, columns])
        self._total += product  # at once: by parts of rows it takes longer


def tile_of(right: torch.Tensor) -> torch.Tensor:
    """Return memory, float64, for as many rows of a tensor as are widened at once."""
    size = 8 * VECTOR * max(1, right.shape[1])
    rows = VECTOR * max(1, _TILE_BYTES[right.device.type] // size)
    return right.new_empty(min(rows, len(right)), right.shape[1], dtype=torch.float64)


def chunk_size(
    expected_batch: float,
    most: int,
    device: torch.device,
    rows_to_begin: Mapping[str, float] = ROWS_TO_BEGIN,
) -> int:
    """Return how many rows every chunk of a trial has: those of which a Poisson batch is fastest.

    A chunk takes the time of its rows, examples or zeros, and of what it takes to begin one. The
    size follows from public numbers: one that followed the batch would depend on how many share it.

    >>> cpu = torch.device("cpu")
    >>> chunk_size(64, 64, cpu), chunk_size(64, 256, cpu), chunk_size(4096, 64, cpu)
    (32, 80, 64)

    Args:
        expected_batch: Expected number of examples of a batch; may be infinite.
        most: ``batch.physical``, at least 1.
        device: Where chunks are computed.
        rows_to_begin: By device; default: of a network.
    """
    if most < VECTOR or math.isinf(expected_batch):
        return most
    begin = rows_to_begin[device.type]
    sizes = range(VECTOR, most + 1, VECTOR)
    return min(sizes, key=lambda size: _expected_chunks(expected_batch, size) * (size + begin))


def _expected_chunks(expected_batch: float, size: int) -> float:
    """Return the expected number of chunks of a batch, whose size is all but normal."""
    spread = math.sqrt(2 * expected_batch)
    count = math.ceil((expected_batch + 4 * spread) / size)
    return sum(math.erfc((k * size - expected_batch) / spread) / 2 for k in range(count))

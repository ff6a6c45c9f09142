"""Places of rows in a chunk: what a row gives must not depend on its place, nor on other rows.

Kernels round otherwise for other numbers of rows, so chunks are filled up to one size (``filled``).
Sums rest on it (``dpsweep.trainables.gradients.sums``), and so do counts that get noise
(``dpsweep.trainables.data.tasks``).

In rounded precision more than that is asked for: an example's gradient must be a function of that
example alone (``refuse_moving``). It is looked at, on random numbers in the size of a chunk, to the
last bit: at other places of the chunk, beside other rows, beside rows of zeros and beside rows that
are large. Codes of rows are compared and not the rows, so that no second chunk of gradients is
held. On CUDA that is not enough for products over positions, as in attention
(``refuse_products_over_positions``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from dpsweep.foundation.errors import ModelError

#: Entries of a row that are coded at once.
_CODED_AT_ONCE = 2**14
#: Chunks are multiples of this, as kernels treat what is left over of their vectors otherwise.
VECTOR = 16
#: How large the rows are beside which an example is tried, relative to it.
_LARGE = 1e3


def filled(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Return rows with zeros after them, so that there are ``size``.

    >>> filled(torch.ones(1, 2), 2).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    if len(rows) == size:
        return rows
    return torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])


def even_size(declared: int, most: int) -> int:
    """Return the size of chunks, as few as can be and nearly even, that hold the declared rows.

    It follows from public numbers: one that followed the actual rows would tell of them.

    >>> even_size(5000, 4096), even_size(180, 4096), even_size(0, 4096), even_size(100, 8)
    (2512, 192, 16, 8)

    Args:
        declared: How many rows there are said to be.
        most: The largest size.
    """
    chunks = max(1, math.ceil(declared / most))
    rows = max(1, math.ceil(declared / chunks))
    return min(most, VECTOR * math.ceil(rows / VECTOR))


def even_block(rows: int, most: int) -> int:
    """Return the size of the largest blocks of at most ``most`` rows that divide a chunk evenly.

    A kernel for the rows that are left over would round those otherwise. Chunks of more than 16
    rows are multiples of 16 (``sums.chunk_size``), so that blocks are hardly ever of one row.

    >>> even_block(64, 28), even_block(48, 28), even_block(13, 4), even_block(16, 1000)
    (16, 24, 1, 16)

    Args:
        rows: Of the chunk.
        most: The largest size, at least 1.
    """
    return next((size for size in range(min(rows, most), 0, -1) if rows % size == 0), 1)


def row_codes(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return a number for each row of each tensor, by the bits of its float32 entries.

    A sum of products modulo 2^64 with odd multipliers, exact in whatever order it is added up: two
    rows that differ in one entry have other codes, and others the same by a chance of 2^-63.

    Args:
        parts: Floating point (rows, ...) each, of one number of rows.
    Returns:
        int64 (tensors, rows).
    """
    generator, codes = torch.Generator().manual_seed(0), []
    for part in parts:
        code = torch.zeros(len(part), dtype=torch.int64, device=part.device)
        for columns in part.flatten(1).split(_CODED_AT_ONCE, dim=1):
            bits = (columns.float() + 0.0).contiguous().view(torch.int32)  # -0.0 counts as 0.0
            multipliers = torch.randint(0, 2**62, (bits.shape[1],), generator=generator)
            code += (bits.long() * (2 * multipliers + 1).to(code.device)).sum(dim=1)
        codes.append(code)
    return torch.stack(codes)


def refuse_moving(
    parts: Callable[[torch.Tensor], Iterable[torch.Tensor]],
    x: torch.Tensor,
    others: torch.Tensor,
) -> None:
    """Refuse gradients that change with an example's place, or with what is beside it.

    Args:
        parts: From records to what their gradients consist of, (records, ...) each.
        x: Random records, as many as a chunk has.
        others: As many others.
    Raises:
        ModelError: A row's bits change.
    """
    before = row_codes(parts(x))
    for batch, order in _batches(x, others):
        kept = order >= 0
        after = row_codes(parts(batch))
        if not torch.equal(after[:, kept], before[:, order[kept]]):
            raise ModelError(
                "in bfloat16 an example's gradient depends on its place among others",
                because="a kernel of this network rounds a row otherwise at another place or"
                " beside other rows, and in bfloat16 that moves it by parts of 2^-8",
                fix="model.precision: float32",
            )


def refuse_products_over_positions(
    forward: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, x: torch.Tensor
) -> None:
    """Refuse networks that multiply by weights at several positions of an example.

    For bfloat16 on CUDA. There a product of all rows of a chunk is cut into tiles, and how a row
    rounds can depend on the tile that it is in. On an H200 (torch 2.11) the biases of a vision
    transformer moved by 7e-8 with an example's place, after ``refuse_moving`` had passed them.
    Convolutions that train whole, and heads of one row per example, did not. The way in which norms
    were added up there may have been the cause, which is gone since (``clipping.row_norms``); until
    that is tried on a GPU these networks stay refused.

    Args:
        forward: Runs the network.
        model: The network.
        x: Records.
    Raises:
        ModelError: A linear layer or attention of it is given more than one row per example.
    """
    seen: list[str] = []

    def note(layer: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if any(isinstance(v, torch.Tensor) and v.dim() > 2 for v in (*inputs, *named.values())):
            seen.append(type(layer).__name__)

    hooks = [
        layer.register_forward_pre_hook(note, with_kwargs=True)
        for layer in model.modules()
        if _multiplies(layer)
    ]
    try:
        with torch.no_grad():
            forward(x)
    finally:
        for hook in hooks:
            hook.remove()
    if seen:
        raise ModelError(
            f"in bfloat16 on a GPU a {seen[0]} layer's gradients can depend on an example's place",
            because="it multiplies several positions of each example, and how a row of such a"
            " product rounds may depend on the rows beside it",
            fix="model.precision: float32",
        )


def _multiplies(layer: nn.Module) -> bool:
    """Say whether a layer multiplies rows by a matrix of its own: also GPT-2's Conv1D."""
    weight = layer._parameters.get("weight")
    is_matrix = weight is not None and weight.dim() == 2 and not isinstance(layer, nn.Embedding)
    return is_matrix or isinstance(layer, nn.MultiheadAttention)


def _batches(x: torch.Tensor, others: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches, and for each row which of ``x`` it is, int64 (rows,); -1: none."""
    count, device = len(x), x.device
    rows = torch.arange(count, device=device)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(1)).to(device)
    for order in (rows.roll(1), rows.flip(0), drawn):
        yield x[order], order
    is_even = rows % 2 == 0
    large = (_LARGE * others).to(others.dtype) if others.is_floating_point() else others
    for beside in (others, large, torch.zeros_like(x)):
        for stays in (is_even, ~is_even, rows == count - 1):
            batch = torch.where(stays.view(-1, *[1] * (x.dim() - 1)), x, beside)
            yield batch, torch.where(stays, rows, -1)

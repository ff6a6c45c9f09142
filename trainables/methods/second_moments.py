"""Second moments of rows that are clipped to norm 1, and what a record adds to them."""

from __future__ import annotations

import torch


def clipped_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of L2 norm at most 1, float64; zero where a row is not finite.

    A row is divided by its largest entry before anything is squared, so that neither huge nor tiny
    entries pass for a norm that they do not have.
    """
    x = rows.double()
    largest = x.abs().amax(dim=1, keepdim=True)
    unit = x / largest
    size = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
    x = torch.where(largest * size > 1, unit / size, x)
    return torch.where(largest.isfinite(), x, 0.0)


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return rows of L2 norm 1, float64; zero where a row is zero or not finite.

    >>> unit_rows(torch.tensor([[3.0, -4.0], [0.0, 0.0], [1e-30, 0.0]])).tolist()
    [[0.6, -0.8], [0.0, 0.0], [1.0, 0.0]]
    """
    x = rows.double()
    largest = x.abs().amax(dim=1, keepdim=True)
    unit = x / largest
    unit = unit / torch.linalg.vector_norm(unit, dim=1, keepdim=True)
    return torch.where(largest.isfinite() & (largest > 0), unit, 0.0)


def mirrored(matrix: torch.Tensor) -> torch.Tensor:
    """Return the upper triangle of a matrix and its mirror image."""
    return matrix.triu() + matrix.triu(1).T


def second_moment(rows: torch.Tensor, *, block: int = 4096) -> torch.Tensor:
    """Return sum_i x_i x_i^T over rows that are clipped to L2 norm 1; not divided by their number.

    The number of rows is private, and principal components do not depend on it.

    >>> second_moment(torch.tensor([[0.5, 0.5], [0.0, 9.0], [float("nan"), 1.0]])).tolist()
    [[0.25, 0.25], [0.25, 1.25]]

    Guarantees:
        Adding or removing a row, whatever it holds, moves the upper triangle with its diagonal by
        at most 1 in L2 norm, up to the rounding of float64; a row with an entry that is not finite
        adds zero. The lower triangle is a copy of the upper one to the last bit, so that noise
        which is mirrored leaves nothing of their difference. The result itself is not private.

    Args:
        rows: Embeddings, (n, d), d at least 1, any float dtype and device; n may be 0.
        block: Rows that are widened to float64 at once, at least 1.
    Returns:
        float64 (d, d) on the CPU, exactly symmetric and finite.
    """
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64, device=rows.device)
    for begin in range(0, len(rows), block):
        x = clipped_rows(rows[begin : begin + block])
        total += x.T @ x
    return mirrored(total).cpu()

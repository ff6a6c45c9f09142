"""The sums that least squares needs, as they are released: covariance, and targets.

Mehta et al. 2023 (https://arxiv.org/abs/2211.13403), algorithms DP-LS and DP-FC. Rows x have norm
1 (``second_moments.unit_rows``), each by itself.
"""

from __future__ import annotations

import math

import torch

from dpsweep.trainables.devices.places import filled
from dpsweep.trainables.methods.adamix.noisy_gd import HeadRecords
from dpsweep.trainables.methods.second_moments import mirrored, unit_rows

#: Rows that are widened to float64 at once.
BLOCK = 2048


def triangle(matrix: torch.Tensor) -> torch.Tensor:
    """Return a symmetric matrix as a vector of the same norm.

    The entries of the upper triangle with its diagonal, row by row, those beside the diagonal
    times sqrt(2): each stands twice in the matrix, and once here.

    >>> triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).square().round().tolist()
    [1.0, 8.0, 9.0]

    Args:
        matrix: (d, d); its lower triangle is not read.
    Returns:
        (d (d + 1) / 2,).
    """
    entries = matrix[tuple(_upper(len(matrix), matrix.device))]
    return entries * _weights(len(matrix), matrix)


def symmetric(vector: torch.Tensor, size: int) -> torch.Tensor:
    """Return the (size, size) matrix that ``triangle`` makes a vector of, exactly symmetric."""
    matrix = vector.new_zeros(size, size)
    matrix[tuple(_upper(size, vector.device))] = vector / _weights(size, vector)
    return mirrored(matrix)


def _upper(size: int, device: torch.device) -> torch.Tensor:
    return torch.triu_indices(size, size, device=device)


def _weights(size: int, like: torch.Tensor) -> torch.Tensor:
    rows, columns = _upper(size, like.device)
    beside = like.new_tensor(math.sqrt(2))
    return torch.where(rows == columns, torch.ones_like(beside), beside)


def covariance(inputs: torch.Tensor, *, device: str) -> torch.Tensor:
    """Return ``triangle(sum_i x_i x_i^T)``, x_i the records divided by their norms.

    Guarantees:
        Adding or removing a record, whatever it holds, moves the result by at most 1 in L2 norm,
        up to the rounding of float64, for which ``clipping.noise_margin`` has room. It adds
        ``triangle(x x^T)``, whose squared norm is

            sum_i x_i^4 + 2 sum_{i<j} x_i^2 x_j^2 = (sum_i x_i^2)^2 = |x|^4,

        which is 1, or 0 for a record of zeros or with a value that is not finite. So independent
        noise N(0, s^2) on every entry is one release of the Gaussian mechanism of noise multiplier
        s under add-or-remove-one. In the matrix that ``symmetric`` makes of it, noise has
        the standard deviation s on the diagonal and s / sqrt(2) beside it, which a triangle with
        plain entries (Dwork et al. 2014, Analyze Gauss) would give s. Not private by itself.

    Args:
        inputs: Features, (records, ...), in single or half precision; never written to.
        device: Where the sum is wanted.
    Returns:
        float64 (d (d + 1) / 2,), d the number of features.
    """
    size = inputs[:1].flatten(1).shape[1] if len(inputs) else math.prod(inputs.shape[1:])
    total = torch.zeros(size, size, dtype=torch.float64, device=device)
    for begin in range(0, len(inputs), BLOCK):
        x = unit_rows(inputs[begin : begin + BLOCK].flatten(1).to(device))
        total.addmm_(x.T, x)
    return triangle(total)


def class_sums(
    inputs: torch.Tensor, labels: torch.Tensor, num_classes: int, *, device: str
) -> torch.Tensor:
    """Return the sum of the records of each class, every record divided by its norm: Y^T X.

    Guarantees:
        Adding or removing a record, whatever it holds, moves the result by at most 1 in L2 norm,
        up to the rounding of float64: it adds x to one row, and |x| is 1 or 0. Not private by
        itself.

    Args:
        inputs: Features, (records, ...).
        labels: Classes, int64 (records,), on any device.
        num_classes: C.
        device: Where the sums are wanted.
    Returns:
        float64 (C, d).
    """
    total = torch.zeros(num_classes, math.prod(inputs.shape[1:]), dtype=torch.float64)
    total = total.to(device)
    for begin in range(0, len(inputs), BLOCK):
        x = unit_rows(inputs[begin : begin + BLOCK].flatten(1).to(device))
        total.index_add_(0, labels[begin : begin + BLOCK].to(device), x)
    return total


class UnitRecords(HeadRecords):
    """Records divided by their norms, whose gradients of a softmax head are wanted.

    A block is divided when it is read, in float64, and rounded to float32 once: what a record adds
    to a sum depends on it alone.
    """

    def _blocks(self):  # type: ignore[no-untyped-def]
        for rows, x in super()._blocks():
            yield rows, filled(unit_rows(x).float(), len(x))

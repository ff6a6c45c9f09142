"""Differentially private principal components: Analyze Gauss.

Dwork, Talwar, Thakurta and Zhang 2014 ("Analyze Gauss: optimal bounds for privacy-preserving
principal component analysis", algorithm 1), as used by Zhao et al. 2020
(https://arxiv.org/abs/1910.01177, section 3.3) on the embeddings of private records.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from dpsweep.foundation.errors import BadInputError


def _clipped(rows: torch.Tensor) -> torch.Tensor:
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


def _mirrored(matrix: torch.Tensor) -> torch.Tensor:
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
        x = _clipped(rows[begin : begin + block])
        total += x.T @ x
    return _mirrored(total).cpu()


def symmetric_noise(
    size: int, noise_multiplier: float, generator: np.random.Generator
) -> torch.Tensor:
    """Return a symmetric matrix whose upper triangle, with its diagonal, is iid N(0, s^2).

    Guarantees:
        ``second_moment(rows) + symmetric_noise(d, s, generator)`` is one release of the Gaussian
        mechanism of noise multiplier s under add-or-remove-one: its sensitivity is 1. A row x of
        norm at most 1 adds x x^T, and of that matrix, which is symmetric, the upper triangle says
        everything. Its squared L2 norm is sum_{i<=j} x_i^2 x_j^2 = (|x|^4 + sum_i x_i^4) / 2, at
        most |x|^4 <= 1; a row with a single entry other than zero attains it. The mirrored half
        of the noise is post-processing.

        Holds for a secret generator only (``secret_numpy_generator``). Not covered: the
        discreteness of floating point numbers (``dpsweep.privacy.randomness``).

    Args:
        size: d, the number of rows and of columns.
        noise_multiplier: s, the standard deviation of an entry; 0 adds nothing and protects
            nothing.
        generator: Secret.
    Returns:
        float64 (d, d) on the CPU, exactly symmetric.
    Raises:
        ValueError: The noise multiplier is negative or not finite.
    """
    if not 0 <= noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier must be finite and not negative: {noise_multiplier}")
    noise = np.zeros((size, size))
    above = np.triu_indices(size)
    noise[above] = noise_multiplier * generator.standard_normal(len(above[0]))
    return _mirrored(torch.from_numpy(noise))


def principal_components(moment: torch.Tensor, num: int) -> torch.Tensor:
    """Return the eigenvectors of the ``num`` largest eigenvalues, largest first.

    Each has the sign that makes its entry of largest magnitude positive, so that the same moment
    always has the same components. Noise can make eigenvalues negative; those come last.

    >>> principal_components(torch.diag(torch.tensor([1.0, 9.0, 4.0])), 2).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]

    Guarantees:
        Post-processing: as private as the moment that is given.

    Args:
        moment: Symmetric, (d, d); only its upper triangle is read.
        num: Components, 1 to d.
    Returns:
        float64 (d, num), columns orthonormal; rows times it are projected (Zhao et al. 2020,
        algorithm 2).
    Raises:
        BadInputError: There are not that many components.
    """
    if not 1 <= num <= len(moment):
        raise BadInputError(
            f"{num} principal components cannot be had of {len(moment)} dimensions",
            fix=f"ask for 1 to {len(moment)}",
        )
    vectors = torch.linalg.eigh(moment.double(), UPLO="U").eigenvectors.flip(1)[:, :num]
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return vectors * largest.sign()

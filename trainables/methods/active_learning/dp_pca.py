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
from dpsweep.trainables.methods.second_moments import mirrored


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
    return mirrored(torch.from_numpy(noise))


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

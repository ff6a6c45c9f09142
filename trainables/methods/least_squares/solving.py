"""Heads from noisy sums: the inverse of a noisy covariance."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Inverse(NamedTuple):
    """(A^+ + ridge I)^-1, A^+ a symmetric matrix with its negative eigenvalues set to 0.

    Attributes:
        vectors: Eigenvectors of A, float64 (d, d), one a column.
        values: Eigenvalues of the inverse, float64 (d,).
    """

    vectors: torch.Tensor
    values: torch.Tensor

    def applied(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows, float64 (n, d), times the inverse."""
        return (rows @ self.vectors) * self.values @ self.vectors.T


def inverse(covariance: torch.Tensor, ridge: float) -> Inverse:
    """Return the inverse of a noisy covariance, made positive.

    A covariance has no negative eigenvalue; noise makes some. Setting them to 0 is the projection
    to the nearest matrix that is one, as in the code of Mehta et al. 2023
    (https://github.com/google-research/google-research/tree/master/dp_transfer).

    >>> one = inverse(torch.tensor([[3.0, 0.0], [0.0, -5.0]]).double(), 1.0)
    >>> one.applied(torch.tensor([[4.0, 2.0]]).double()).tolist()
    [[1.0, 2.0]]

    Guarantees:
        Post-processing: as private as the covariance that is given.

    Args:
        covariance: float64 (d, d), exactly symmetric.
        ridge: Above 0.
    """
    values, vectors = torch.linalg.eigh(covariance)
    return Inverse(vectors, 1 / (values.clamp(min=0.0) + ridge))

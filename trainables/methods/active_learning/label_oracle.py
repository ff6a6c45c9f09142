"""Labels of public records, hidden until they are bought.

Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 3.1): public records come without
labels, and N_labeled of them may be asked for.
"""

from __future__ import annotations

import numpy as np
import torch

from dpsweep.foundation.errors import BadInputError


class LabelOracle:
    """Gives labels of public records on request, up to a number of records.

    >>> oracle = LabelOracle(np.array([7, 8, 9]), most=2)
    >>> oracle.buy(torch.tensor([2, 0])).tolist()
    [9, 7]
    >>> oracle.num_bought
    2

    Guarantees:
        No more than ``most`` labels ever leave it. Nothing about privacy: the records are public.

    Args:
        labels: One per public record, int64 (n,); copied.
        most: Different records whose labels can be bought, at least 0.
    """

    def __init__(self, labels: np.ndarray, *, most: int) -> None:
        self._labels = np.array(labels, dtype=np.int64)
        self._most = most
        self._is_bought = np.zeros(len(self._labels), dtype=bool)

    def buy(self, rows: torch.Tensor | np.ndarray) -> torch.Tensor:
        """Return the labels of these records, in their order; one that is bought already is free.

        Args:
            rows: int64 (r,), each in [0, n); a row may come more than once and counts once.
        Returns:
            int64 (r,).
        Raises:
            BadInputError: More than ``most`` records would be bought, or there is no such record;
                nothing is bought then.
        """
        index = self._index(rows)
        self._is_bought = self._with(self._is_bought, index)
        return torch.from_numpy(self._labels[index])

    def restore(self, rows: torch.Tensor | np.ndarray) -> None:
        """Set what was bought, as ``bought`` returned it before an interruption.

        Raises:
            BadInputError: These are more than ``most``, or there is no such record; nothing
                changes then.
        """
        self._is_bought = self._with(np.zeros_like(self._is_bought), self._index(rows))

    @property
    def bought(self) -> np.ndarray:
        """Records whose labels have been bought, sorted, int64."""
        return np.flatnonzero(self._is_bought)

    @property
    def num_bought(self) -> int:
        """How many there are."""
        return int(self._is_bought.sum())

    def _index(self, rows: torch.Tensor | np.ndarray) -> np.ndarray:
        index: np.ndarray = (
            torch.as_tensor(rows).cpu().numpy().astype(np.int64, casting="same_kind")
        )
        outside = index[(index < 0) | (index >= len(self._labels))]
        if len(outside):
            raise BadInputError(
                f"there is no public record {outside[0]}: there are {len(self._labels)}"
            )
        return index

    def _with(self, before: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return what is bought after this, if that is not too much."""
        after: np.ndarray = before.copy()
        after[index] = True
        if after.sum() > self._most:
            raise BadInputError(
                f"labels of {after.sum()} public records are more than labels.max={self._most}",
                because=f"{before.sum()} were bought before, {after.sum() - before.sum()} are new",
                fix="raise labels.max or choose fewer records",
            )
        return after

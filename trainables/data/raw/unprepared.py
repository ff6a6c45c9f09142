"""Records as their file has them, of which those that are asked for are prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsweep.trainables.data.raw.preparation import ArrayRecords


class Unprepared:
    """Records that are prepared when they are asked for, and not before.

    Bytes take a quarter of the memory of what a method reads. A study that uses a few of many
    records never makes the others: of 60,000 images of 28 x 28 that is 188 MB. Slices, lists of
    rows and masks return an array.

    >>> pixels = ArrayRecords((2,), "uint8", (2,), scale=0.5)
    >>> records = Unprepared(np.array([[0, 2], [4, 6]], np.uint8), pixels)
    >>> records[[1]].tolist(), records.shape
    ([[2.0, 3.0]], (2, 2))

    Args:
        values: (records, *raw_shape of the preparation); never written to.
        preparation: What makes a method's input of them.
    """

    def __init__(self, values: np.ndarray, preparation: ArrayRecords) -> None:
        self._values, self._preparation = values, preparation

    @property
    def shape(self) -> tuple[int, ...]:
        """(records, ...), as a method reads them."""
        return (len(self._values), *self._preparation.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what an index returns."""
        return np.dtype(self._preparation.dtype)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray) -> np.ndarray:
        assert isinstance(rows, slice) or np.ndim(rows) == 1, "one row is [row : row + 1]"
        return self._preparation.prepare(self._values[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        made = self._preparation.prepare(self._values)
        return made if dtype is None else made.astype(dtype, copy=False)

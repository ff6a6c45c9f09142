"""Images as bytes, a quarter of what their numbers take, in memory or in a file.

A method reads float32 in [0, 1]: that is made of the rows which are asked for, and of no others.
So what a set of images needs in memory does not grow with their number once they are in a file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.foundation.errors import DataError, ResourceError
from dpsweep.trainables.data.kept.files import hold

#: Most bytes of float32 that are made at once where all rows are passed over.
BLOCK_BYTES = 2**25


class PixelFile:
    """Rows of bytes in a file, read when they are asked for; a value that is pickled by its path.

    Rows are read, not mapped: so pages of a large file are nobody's memory.

    Args:
        path: File of an entry (``files.Entry``), which no one writes to any more.
        begin: Byte at which the rows begin.
        shape: (rows, channels, height, width).
        sha256: Of all rows, by which they are told from others.
    """

    def __init__(self, path: Path, begin: int, shape: tuple[int, ...], sha256: str = "") -> None:
        self.path, self.begin, self.shape, self.sha256 = path, begin, shape, sha256
        self._handle: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None}

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            os.close(self._handle)  # type: ignore[arg-type]

    def open(self) -> int:
        """Return the open file, which is then held against eviction.

        Raises:
            ResourceError: It is not there, or another user's.
        """
        if self._handle is None:
            try:
                self._handle = hold(self.path)
            except OSError as error:
                raise ResourceError(
                    f"decoded images in {self.path.parent} cannot be read",
                    because=error.strerror,
                    fix="set storage.features to a directory that all nodes share, and leave it",
                ) from error
        return self._handle

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return rows, uint8 (len(rows), channels, height, width); neighbours are read at once.

        Raises:
            ResourceError: See ``open``.
            DataError: The file is cut short.
        """
        handle = self.open()
        size = int(np.prod(self.shape[1:]))
        values = np.empty((len(rows), *self.shape[1:]), np.uint8)
        view: memoryview = values.reshape(-1).data
        ends = np.flatnonzero(np.diff(rows) != 1) + 1
        first = 0
        for end in [*ends.tolist(), len(rows)] if len(rows) else []:
            block = view[first * size : end * size]
            offset = self.begin + int(rows[first]) * size
            while block:
                count = os.preadv(handle, [block], offset)
                if count == 0:
                    raise DataError(
                        f"{self.path.name} is cut short", fix="run again: it is made anew"
                    )
                block, offset = block[count:], offset + count
            first = end
        return values

    def computed_sha256(self) -> str:
        """Return the SHA-256 of all rows as they are in the file now.

        Raises:
            ResourceError: See ``open``.
        """
        handle, digest = self.open(), hashlib.sha256()
        offset, left = self.begin, int(np.prod(self.shape, dtype=np.int64))
        while left:
            content = os.pread(handle, min(left, BLOCK_BYTES), offset)
            if not content:
                break
            digest.update(content)
            offset, left = offset + len(content), left - len(content)
        return digest.hexdigest()


class Pixels:
    """Images in [0, 1] that are kept as bytes; on its first axis it is indexed as an array is.

    An index returns another ``Pixels`` and reads nothing; ``numpy.asarray`` returns float32, each
    byte divided by 255. Never written to.

    >>> pixels = Pixels(np.array([[0, 255], [51, 102]], np.uint8))
    >>> np.asarray(pixels[1:]).tolist(), pixels[[True, False]].shape
    ([[0.20000000298023224, 0.4000000059604645]], (1, 2))

    Args:
        source: uint8 (records, ...), or a file of such rows.
        rows: Which rows of it these are, int64; None: all of them.
        record: Shape of one record, of as many values as a row; None: the row's.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self,
        source: np.ndarray | PixelFile,
        rows: np.ndarray | None = None,
        record: tuple[int, ...] | None = None,
    ) -> None:
        self.source = source
        self.rows = np.arange(source.shape[0]) if rows is None else rows
        self._record = source.shape[1:] if record is None else record

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self.source, PixelFile):
            return vars(self)
        source = np.ascontiguousarray(self.source[self.rows])  # these rows, and no others
        return {**vars(self), "source": source, "rows": np.arange(len(source))}

    @property
    def shape(self) -> tuple[int, ...]:
        """(records, ...)."""
        return (len(self.rows), *self._record)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the same as float32."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> Pixels:
        if not isinstance(index, slice):
            index = np.asarray(index)
            assert index.ndim == 1, "one row is [row : row + 1]"
            index = index if index.dtype == bool else index.astype(np.int64)
        return Pixels(self.source, self.rows[index], self._record)

    def reshape(self, shape: Sequence[int]) -> Pixels:
        """Return the same records in another shape of one record."""
        assert np.prod(shape[1:], dtype=np.int64) == np.prod(self._record, dtype=np.int64)
        assert shape[0] == len(self)
        return Pixels(self.source, self.rows, tuple(shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self.source, PixelFile):
            values = self.source.read(self.rows)
        else:
            values = self.source[self.rows]
        made = np.divide(values, np.float32(255), dtype=np.float32).reshape(self.shape)
        return made if dtype is None else made.astype(dtype, copy=False)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all records in their order, a few at once, float32."""
        size = max(1, BLOCK_BYTES // max(1, self.nbytes // max(1, len(self))))
        for begin in range(0, len(self), size):
            yield np.asarray(self[begin : begin + size])


#: Records as a method reads them: an array, or images that are kept as bytes.
Inputs = np.ndarray | Pixels


def taken(inputs: Inputs, rows: Any) -> Any:
    """Return some rows: a C-contiguous array of an array, and of images kept as bytes others."""
    return inputs[rows] if isinstance(inputs, Pixels) else np.ascontiguousarray(inputs[rows])


def blocks_of(inputs: Inputs) -> Iterator[np.ndarray]:
    """Yield C-contiguous arrays that together are all records in their order."""
    if isinstance(inputs, Pixels):
        yield from inputs.blocks()
    else:
        yield inputs

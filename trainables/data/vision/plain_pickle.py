"""Pickles of lists, texts and arrays of bytes, read without running anything that they name.

A pickle names functions and has them called. Here only three names mean anything, and what they
mean is below: a file that names others is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.foundation.errors import DataError


class _Type:
    """Stands for ``numpy.dtype``; only that of unsigned bytes is taken."""

    def __init__(self, name: Any, *_: Any) -> None:
        if name not in ("u1", b"u1", "|u1", b"|u1"):
            raise pickle.UnpicklingError("an array of other numbers than bytes")

    def __setstate__(self, state: Any) -> None:
        pass  # of bytes, it says nothing


class _Array:
    """Stands for ``numpy.ndarray``."""

    value: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Type):
            raise pickle.UnpicklingError("an array of unknown numbers")
        content = content.encode("latin1") if isinstance(content, str) else content
        values = np.frombuffer(content, np.uint8)
        self.value = values.reshape(shape, order="F" if is_fortran else "C")


def _new_array(*_: Any) -> _Array:
    return _Array()


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    """Stand for ``_codecs.encode``, by which old pickles of Python 3 hold bytes."""
    return text.encode("latin1")


_MEANINGS = {
    **{(f"numpy{core}.multiarray", "_reconstruct"): _new_array for core in (".core", "._core")},
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _encoded,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return our stand-in for a name; nothing is imported.

        Raises:
            UnpicklingError: It has none.
        """
        if (module, name) not in _MEANINGS:
            raise pickle.UnpicklingError(f"it names {module}.{name}"[:100])
        return _MEANINGS[module, name]


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary of a pickle file: lists, numbers, texts (as bytes), arrays of bytes.

    Guarantees:
        Nothing that the file names is imported or called, so that it does no more than hold data.

    Raises:
        DataError: It holds something else, or is damaged.
    """
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        because = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise DataError(
            f"{path.name} is not a plain pickle of arrays and lists",
            because=because,
            fix="get the file again",
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"{path.name} holds no dictionary", fix="get the file again")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): _plain(value)
        for key, value in content.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, list):
        return [entry.decode("latin1") if isinstance(entry, bytes) else entry for entry in value]
    return value

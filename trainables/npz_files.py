"""Files of numpy arrays: headers without records, and arrays without surprises."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.foundation.errors import DataError


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of every array of an .npz file, without reading a record.

    Raises:
        DataError: The file is no .npz file.
    """
    headers = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                with archive.open(entry) as file:
                    version = np.lib.format.read_magic(file)
                    if version == (1, 0):
                        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                    else:
                        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
                headers[entry.removesuffix(".npy")] = (shape, dtype)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path} is not an .npz file, or cut short: {error}",
            fix="get the file again, or save it anew with numpy.savez",
        ) from error
    return headers


def shown_shape(shape: tuple[int, ...]) -> str:
    """Return a shape without the number of records, which is private.

    >>> shown_shape((587, 3)), shown_shape((587,)), shown_shape(())
    ('(records, 3)', '(records,)', '()')
    """
    if len(shape) < 2:
        return "(records,)" if shape else "()"
    return f"(records, {', '.join(map(str, shape[1:]))})"


def check_label_shape(
    label_shape: tuple[int, ...], shape: tuple[int, ...], num_classes: int, task: str, part: str
) -> None:
    """Check that there is one label, or one row of attributes, for each record.

    Raises:
        DataError: There is not; the true numbers of records stay unsaid.
    """
    width = (num_classes,) if task == "multi_label" else ()
    if len(label_shape) != 1 + len(width) or label_shape[1:] != width:
        fix = "store one class number a record"
        if task == "multi_label":
            fix = "store one row of attributes a record; data.num_classes is their number"
        wanted = shown_shape((0, *width))
        raise DataError(f"y_{part} has shape {shown_shape(label_shape)}, not {wanted}", fix=fix)
    if label_shape[0] != shape[0]:
        raise DataError(
            f"x_{part} and y_{part} have different numbers of records",
            fix="store one label for each record, in the same order",
        )


def npz_array(file: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    """Return one array of an open .npz file.

    Raises:
        DataError: It is damaged: cut short, or with another checksum than it was stored with.
    """
    try:
        return file[name]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path.name}: {name} is damaged ({type(error).__name__})", fix="get the file again"
        ) from None

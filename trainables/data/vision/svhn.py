"""SVHN, house numbers of street views, as its authors and torchvision store it: MATLAB files.

Source: Netzer et al. 2011, http://ufldl.stanford.edu/housenumbers (format 2, cropped digits).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.raw.preparation import ArrayRecords
from dpsweep.trainables.data.source import Arrays, Source, checked_labels, known_size, path_of

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

_SVHN = ArrayRecords((32, 32, 3), "uint8", (3, 32, 32), scale=1 / 255, is_channels_last=True)
_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
#: Records of the training and of the test part.
_SIZES = (73_257, 26_032)
_GET_AGAIN = "get the file again, from http://ufldl.stanford.edu/housenumbers"


def open_svhn(spec: DataSpec) -> Source:
    """Return the source of ``dataset: svhn``; of its part ``extra`` nothing is read."""
    folder = path_of(spec, f"the directory of {' and '.join(_FILES.values())}")
    paths = {part: folder / name for part, name in _FILES.items()}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(
            f"svhn: {', '.join(missing)} not found in {folder}",
            fix="set data.path to the directory of these files, where torchvision puts them",
        )
    sizes = {part: _records_of(path) for part, path in paths.items()}

    def read() -> dict[str, Arrays]:
        return {part: _read(path) for part, path in paths.items()}

    return Source(
        _SVHN.shape,
        10,
        tuple(str(digit) for digit in range(10)),
        known_size(spec, _SIZES[0]),
        None,
        _SIZES[1],
        read,
        num_found=sizes["train"],
        preparation=_SVHN,
    )


def _records_of(path: Path) -> int:
    """Return how many records a file says it has; only the headers of its arrays are read."""
    from scipy.io import whosmat

    try:
        shapes = {name: shape for name, shape, _ in whosmat(str(path))}
    except Exception as error:  # scipy raises many kinds at a file that is none
        raise DataError(
            f"{path.name} is not a MATLAB file: {type(error).__name__}", fix=_GET_AGAIN
        ) from error
    images, labels = shapes.get("X", ()), shapes.get("y", ())
    if len(images) != 4 or images[:3] != _SVHN.raw_shape or labels != (images[3], 1):
        raise DataError(
            f"{path.name} does not hold images X of shape (32, 32, 3, records) and one label y "
            "for each",
            fix=f"use the cropped digits, format 2, or {_GET_AGAIN}",
        )
    return int(images[3])


def _read(path: Path) -> Arrays:
    """Return the records of a file; the digit 0 has label 10 there."""
    from scipy.io import loadmat

    try:
        stored = loadmat(str(path), variable_names=["X", "y"])
        images, labels = stored["X"], stored["y"][:, 0].astype(np.int64)
    except Exception as error:
        raise DataError(
            f"{path.name} is damaged: {type(error).__name__}", fix=_GET_AGAIN
        ) from error
    if images.dtype != np.uint8 or (len(labels) and labels.min() < 0):
        raise DataError(f"{path.name} does not hold bytes and digits", fix=_GET_AGAIN)
    labels = np.where(labels == 10, 0, labels)
    return _SVHN.prepare(images.transpose(3, 0, 1, 2)), checked_labels(labels, 10, path.name)

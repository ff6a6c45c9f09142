"""CIFAR-10 and CIFAR-100 as their authors and torchvision store them: batches of Python.

Source: A. Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.raw.preparation import ArrayRecords
from dpsweep.trainables.data.source import Arrays, Source, checked_labels, known_size, path_of
from dpsweep.trainables.data.vision.plain_pickle import read_plain_pickle

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

_CIFAR = ArrayRecords((32, 32, 3), "uint8", (3, 32, 32), scale=1 / 255, is_channels_last=True)
#: Records of the training and of the test part.
_SIZES = (50_000, 10_000)


@dataclass(frozen=True)
class _Layout:
    """Files of one of the two datasets, and their keys.

    Attributes:
        folder: Name of the archive's folder.
        train: Files of the training part.
        test: File of the test part.
        meta: File of the names of classes.
        names: Key of the names in ``meta``.
        labels: Key of the labels in a batch.
        num_classes: How many classes there are.
    """

    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    names: str
    labels: str
    num_classes: int


_CIFAR10 = _Layout(
    "cifar-10-batches-py",
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test_batch",
    "batches.meta",
    "label_names",
    "labels",
    10,
)
_CIFAR100 = _Layout(
    "cifar-100-python", ("train",), "test", "meta", "fine_label_names", "fine_labels", 100
)


def open_cifar10(spec: DataSpec) -> Source:
    """Return the source of ``dataset: cifar10``."""
    return _open(spec, _CIFAR10)


def open_cifar100(spec: DataSpec) -> Source:
    """Return the source of ``dataset: cifar100``, with its 100 fine classes."""
    return _open(spec, _CIFAR100)


def _open(spec: DataSpec, layout: _Layout) -> Source:
    root = path_of(spec, f"the directory of {layout.folder}, or the one above it")
    folder = root / layout.folder if (root / layout.folder).is_dir() else root
    names = (*layout.train, layout.test, layout.meta)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{spec.dataset}: {', '.join(missing)} not found in {folder}",
            fix=f"set data.path to the folder {layout.folder} of the archive's Python version, "
            "where torchvision unpacks it",
        )
    classes = read_plain_pickle(folder / layout.meta).get(layout.names)
    if not isinstance(classes, list) or len(classes) != layout.num_classes:
        raise DataError(
            f"{spec.dataset}: {layout.meta} does not name {layout.num_classes} classes",
            fix="get the file again",
        )
    files = {"train": layout.train, "test": (layout.test,)}

    def read() -> dict[str, Arrays]:
        return {part: _read_part(folder, batches, layout) for part, batches in files.items()}

    return Source(
        _CIFAR.shape,
        layout.num_classes,
        tuple(str(name) for name in classes),
        known_size(spec, _SIZES[0]),
        None,
        _SIZES[1],
        read,
        preparation=_CIFAR,
    )


def _read_part(folder: Path, batches: Sequence[str], layout: _Layout) -> Arrays:
    read = [_read_batch(folder / name, layout) for name in batches]
    images, labels = (np.concatenate(arrays) for arrays in zip(*read))
    return _CIFAR.prepare(images), labels


def _read_batch(path: Path, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 (records, height, width, channels), and labels of one file."""
    batch = read_plain_pickle(path)
    images, labels = batch.get("data"), _numbers(batch.get(layout.labels))
    if not isinstance(images, np.ndarray) or images.shape[1:] != (3 * 32 * 32,):
        raise DataError(
            f"{path.name} has no images of 3 x 32 x 32 bytes under the key data",
            fix="get the file again",
        )
    if labels is None or len(labels) != len(images):
        raise DataError(
            f"{path.name} has no label for each image under the key {layout.labels}",
            fix="get the file again",
        )
    pixels = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return pixels, checked_labels(labels, layout.num_classes, path.name)


def _numbers(values: Any) -> np.ndarray | None:
    array = np.asarray(values) if isinstance(values, list) else None
    return array if array is not None and array.ndim == 1 and array.dtype.kind in "iu" else None

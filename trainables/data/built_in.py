"""Datasets of a published size: digits, and mnist and fashion_mnist in their idx files."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.raw.preparation import ArrayRecords
from dpsweep.trainables.data.raw.unprepared import Unprepared
from dpsweep.trainables.data.source import (
    Arrays,
    KeptRead,
    Source,
    checked_labels,
    known_size,
    path_of,
)

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec


#: Where the Debian package dataset-fashion-mnist puts its files.
FASHION_MNIST_PATH = Path("/usr/share/datasets/fashion-mnist")
FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

#: Pixels of scikit-learn's digits are 0 to 16, those of MNIST's and Fashion-MNIST's files 0 to 255.
_DIGITS = ArrayRecords((8, 8), "float64", (1, 8, 8), scale=1 / 16)
_MNIST = ArrayRecords((28, 28), "uint8", (1, 28, 28), scale=1 / 255)


def open_digits(spec: DataSpec) -> Source:
    """Return the source of ``dataset: digits``."""

    def read() -> dict[str, Arrays]:
        rows = np.loadtxt(_digits_file(), delimiter=",")  # 64 pixels, then the class
        images = rows[:, :-1].reshape(-1, *_DIGITS.raw_shape)
        return {"train": (_DIGITS.prepare(images), rows[:, -1].astype(np.int64))}

    names = tuple(str(digit) for digit in range(10))
    size = known_size(spec, 1797)
    return Source(_DIGITS.shape, 10, names, size, None, None, read, preparation=_DIGITS)


def _digits_file() -> Path:
    """Return the file of scikit-learn's ``load_digits``, whose import takes half a second."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def open_fashion_mnist(spec: DataSpec) -> Source:
    """Return the source of ``dataset: fashion_mnist``."""
    folder = FASHION_MNIST_PATH if spec.path is None else Path(spec.path).expanduser()
    fix = (
        "install the Debian package dataset-fashion-mnist, or set data.path to a directory "
        "that holds its share/datasets/fashion-mnist files"
    )
    return _open_idx(spec, folder, "FashionMNIST", FASHION_MNIST_CLASSES, fix)


def open_mnist(spec: DataSpec) -> Source:
    """Return the source of ``dataset: mnist``: handwritten digits, 28 x 28 grey pixels."""
    names = tuple(str(digit) for digit in range(10))
    fix = "set data.path to the directory of its idx files, where torchvision puts them"
    return _open_idx(spec, path_of(spec, "the directory of its idx files"), "MNIST", names, fix)


def _open_idx(spec: DataSpec, root: Path, archive: str, names: tuple[str, ...], fix: str) -> Source:
    """Return the source of four idx files, gzipped or not, below ``root`` as torchvision has them.

    Of mnist, sizes and shapes are read from their first bytes; of fashion_mnist, whose package is
    installed whole, names alone.
    """
    folders = (root, root / "raw", root / archive / "raw")
    folder = next((place for place in folders if _idx_files(place)[0]), root)
    files, missing = _idx_files(folder)
    if missing:
        raise DataError(f"{spec.dataset}: {', '.join(missing)} not found in {folder}", fix=fix)
    num_found = None if spec.dataset == "fashion_mnist" else _checked_sizes(spec, files)["train"]

    def read(*, is_whole: bool = True) -> dict[str, Arrays]:
        parts: dict[str, Arrays] = {}
        for part, (image_path, label_path) in files.items():
            images = _read_idx(image_path, dimensions=3)
            labels = _read_idx(label_path, dimensions=1)
            _check_fit(spec, image_path, images.shape, labels.shape)
            is_used = is_whole or part != "train"  # of which a study may use a few
            inputs: Any = _MNIST.prepare(images) if is_used else Unprepared(images, _MNIST)
            parts[part] = (inputs, checked_labels(labels, 10, label_path.name))
        return parts

    return Source(
        _MNIST.shape,
        10,
        names,
        known_size(spec, 60_000),
        None,
        10_000,
        read,
        num_found=num_found,
        preparation=_MNIST,
        read_kept=KeptRead(read, lambda keep: read(is_whole=False)),
    )


def _checked_sizes(spec: DataSpec, files: Mapping[str, tuple[Path, Path]]) -> dict[str, int]:
    """Return how many records each part says it has."""
    sizes = {}
    for part, (image_path, label_path) in files.items():
        shape = idx_shape(image_path, 3)
        _check_fit(spec, image_path, shape, idx_shape(label_path, 1))
        sizes[part] = shape[0]
    return sizes


def _check_fit(
    spec: DataSpec, path: Path, images: tuple[int, ...], labels: tuple[int, ...]
) -> None:
    if images[1:] != _MNIST.raw_shape or images[0] != labels[0]:
        raise DataError(
            f"{spec.dataset}: {path.name} and its labels do not fit",
            fix="fetch the dataset's files anew",
        )


def _idx_files(folder: Path) -> tuple[dict[str, tuple[Path, Path]], list[str]]:
    """Return images and labels of each part, and the names of those that are not there."""
    files, missing = {}, []
    for part, prefix in (("train", "train"), ("test", "t10k")):
        pair = []
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{prefix}-{kind}-ubyte"
            there = [folder / end for end in (f"{name}.gz", name) if (folder / end).is_file()]
            missing += [] if there else [f"{name}.gz"]
            pair += there[:1]
        if len(pair) == 2:
            files[part] = (pair[0], pair[1])
    return files, missing


def idx_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """Return the shape that an IDX file of unsigned bytes, gzipped or not, says it has.

    Only its first bytes are read (format: http://yann.lecun.com/exdb/mnist/).

    Raises:
        DataError: It is no such file.
    """
    header = _idx_bytes(path, 4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path} is not an IDX file of bytes with {dimensions} dimensions",
            fix="fetch the dataset's files anew",
        )
    return struct.unpack(f">{dimensions}I", header[4:])


def _idx_bytes(path: Path, count: int | None = None) -> bytes:
    is_packed = path.suffix == ".gz"
    try:
        if count is None:  # in one call, during which other threads go on
            return gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
        with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
            return bytes(file.read(count))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}", fix="get the file again") from error


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    shape = idx_shape(path, dimensions)
    content = _idx_bytes(path)
    header = 4 + 4 * dimensions
    if len(content) - header != int(np.prod(shape)):
        raise DataError(f"{path} is cut short or too long", fix="get the file again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)

"""Datasets of a published size: digits and fashion_mnist."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.raw.preparation import ArrayRecords
from dpsweep.trainables.data.source import Arrays, Source, checked_labels, known_size

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

#: Pixels of scikit-learn's digits are 0 to 16, those of Fashion-MNIST's files 0 to 255.
_DIGITS = ArrayRecords((8, 8), "float64", (1, 8, 8), scale=1 / 16)
_FASHION_MNIST = ArrayRecords((28, 28), "uint8", (1, 28, 28), scale=1 / 255)


def open_digits(spec: DataSpec) -> Source:
    """Return the source of ``dataset: digits``."""

    def read() -> dict[str, Arrays]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return {"train": (_DIGITS.prepare(digits.images), digits.target.astype(np.int64))}

    names = tuple(str(digit) for digit in range(10))
    size = known_size(spec, 1797)
    return Source(_DIGITS.shape, 10, names, size, None, None, read, preparation=_DIGITS)


def open_fashion_mnist(spec: DataSpec) -> Source:
    """Return the source of ``dataset: fashion_mnist``."""
    folder = FASHION_MNIST_PATH if spec.path is None else Path(spec.path).expanduser()
    files = {
        part: (folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz")
        for part, prefix in (("train", "train"), ("test", "t10k"))
    }
    missing = [path.name for pair in files.values() for path in pair if not path.is_file()]
    if missing:
        raise DataError(
            f"fashion_mnist: {', '.join(missing)} not found in {folder}",
            fix="install the Debian package dataset-fashion-mnist, or set data.path to a directory "
            "that holds its share/datasets/fashion-mnist files",
        )

    def read() -> dict[str, Arrays]:
        parts = {}
        for part, (image_path, label_path) in files.items():
            images = _read_idx(image_path, dimensions=3)
            labels = _read_idx(label_path, dimensions=1)
            if images.shape[1:] != _FASHION_MNIST.raw_shape or len(images) != len(labels):
                raise DataError(f"fashion_mnist: {image_path.name} and its labels do not fit")
            inputs = _FASHION_MNIST.prepare(images)
            parts[part] = (inputs, checked_labels(labels, 10, label_path.name))
        return parts

    size = known_size(spec, 60_000)
    return Source(
        _FASHION_MNIST.shape,
        10,
        FASHION_MNIST_CLASSES,
        size,
        None,
        10_000,
        read,
        preparation=_FASHION_MNIST,
    )


def _read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes (format: http://yann.lecun.com/exdb/mnist/)."""
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}", fix="get the file again") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path} is not an IDX file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != int(np.prod(shape)):
        raise DataError(f"{path} is cut short or too long", fix="get the file again")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)

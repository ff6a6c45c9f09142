"""Datasets of a published size: digits and fashion_mnist."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
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


def open_digits(spec: DataSpec) -> Source:
    """Return the source of ``dataset: digits``."""

    def read() -> dict[str, Arrays]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        inputs = (digits.images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        return {"train": (inputs, digits.target.astype(np.int64))}

    names = tuple(str(digit) for digit in range(10))
    return Source((1, 8, 8), 10, names, known_size(spec, 1797), None, None, read)


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
            if images.shape[1:] != (28, 28) or len(images) != len(labels):
                raise DataError(f"fashion_mnist: {image_path.name} and its labels do not fit")
            inputs = np.multiply(images[:, None], np.float32(1 / 255), dtype=np.float32)
            parts[part] = (inputs, checked_labels(labels, 10, label_path.name))
        return parts

    size = known_size(spec, 60_000)
    return Source((1, 28, 28), 10, FASHION_MNIST_CLASSES, size, None, 10_000, read)


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

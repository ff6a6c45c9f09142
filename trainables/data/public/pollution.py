"""Records that do not belong to the task, mixed into the public ones.

The experiment of Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 4.3) mixes CIFAR-10
into SVHN to see which way of choosing public records leaves the useless ones alone. Here they are
those of any file, or handwritten digits of scikit-learn and noise, which need none. Loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.privacy.randomness import public_seed
from dpsweep.trainables.data.public.stretching import interpolated
from dpsweep.trainables.data.source import Arrays

if TYPE_CHECKING:
    from dpsweep.spec.data.public import Pollution

#: Fixes the pollution of every study. Public; changing it changes every one.
POLLUTION_SEED = 19_100_117
#: Images that are resized at once.
_BLOCK = 256


def check_pollution(
    pollution: Pollution | None,
    shape: tuple[int, ...],
    num_public: int,
    num_others: int | None = None,
) -> None:
    """Refuse pollution of records that are no images, and of no records.

    Args:
        pollution: Of the spec; None is never refused.
        shape: Shape of one record.
        num_public: Declared public records, without pollution.
        num_others: Records of the file that pollution is made of; None without a file.
    Raises:
        DataError: It is refused.
    """
    if pollution is None:
        return
    if len(shape) != 3:
        raise DataError(
            f"data.public.pollution is made of images, and the records are of shape {shape}",
            fix="give (records, channels, height, width), or remove it",
        )
    if num_public < 1:
        raise DataError(
            "data.public.pollution is mixed into public records, and there are none",
            because="data.public.fraction is too small for one record",
            fix="raise data.public.fraction",
        )
    if num_others is not None and pollution.count(num_public) > num_others:
        raise DataError(
            f"data.public.pollution wants {pollution.count(num_public)} records of a file, which "
            f"has {num_others}",
            fix="lower data.public.pollution.records or share, or name a larger file",
        )


def polluted(
    public: Arrays,
    pollution: Pollution,
    num_classes: int,
    *,
    records: int | None = None,
    others: Arrays | None = None,
) -> tuple[Arrays, np.ndarray]:
    """Return the public records with pollution among them, in an order of a public seed.

    Args:
        public: Images, float32 (n, channels, height, width), and classes, int64 (n,).
        pollution: How many records of which kinds; m in all.
        num_classes: Classes of the task.
        records: Their number as it is declared; None: as many as these public ones ask for.
        others: Of a file, the images and classes (-1: none) that pollution is chosen from by a
            public seed, in the shape of the public ones; they keep their values.
    Returns:
        ((images, float32 (n + m, channels, height, width); classes, int64 (n + m,)); which of them
        are pollution, bool (n + m,)). Every value of the pollution lies between the least and the
        largest one of the public images, but for a file's; of none, between 0 and 1.
    """
    inputs, labels = np.asarray(public[0]), public[1]
    low, high = (float(inputs.min()), float(inputs.max())) if inputs.size else (0.0, 1.0)
    records = pollution.count(len(labels)) if records is None else records
    count = len(labels) + records
    order = _generator("order").permutation(count)
    own, rows = order[: len(labels)], order[len(labels) :]
    mixed = np.empty((count, *inputs.shape[1:]), np.float32)
    classes = np.empty(count, np.int64)
    mixed[own], classes[own] = inputs, labels
    if others is not None:
        mixed[rows], classes[rows] = _chosen(others, records, num_classes)
    begin = 0
    kinds = pollution.kinds if others is None else ()
    for number, kind in enumerate(kinds):
        share, more = divmod(records, len(kinds))
        those = rows[begin : begin + share + (number < more)]
        make = {"digits": digit_images, "noise": noise_images}[kind]
        images, said = make(len(those), inputs.shape[2:], num_classes)
        # Their one channel becomes all there are. Rounding must not leave the range.
        scaled = np.float32(low) + np.float32(high - low) * images
        mixed[those] = np.clip(scaled, np.float32(low), np.float32(high))[:, None]
        classes[those] = said
        begin += len(those)
    is_pollution = np.zeros(count, bool)
    is_pollution[rows] = True
    return (mixed, classes), is_pollution


def _chosen(others: Arrays, records: int, num_classes: int) -> Arrays:
    """Return so many records of a file, each with a class of the task that an annotator says."""
    images, labels = others
    if len(labels) < records:
        raise DataError(
            f"data.public.pollution wants {records} records of a file, which has {len(labels)}",
            fix="lower data.public.pollution.records or share, or name a larger file",
        )
    generator = _generator("file")
    rows = np.sort(generator.permutation(len(labels))[:records])
    said = generator.integers(0, num_classes, records)
    return images[rows], np.where(labels[rows] < 0, said, labels[rows] % num_classes)


def digit_images(num: int, size: tuple[int, ...], num_classes: int) -> Arrays:
    """Return handwritten digits, resized bilinearly, each as another image.

    The 1,797 digits of scikit-learn come in a random order; whoever wants more gets them again, in
    another order and shifted by up to an eighth of each side, zeros moving in.

    >>> images, classes = digit_images(2000, (28, 28), 3)
    >>> images.shape, classes.max()
    ((2000, 28, 28), np.int64(2))

    Args:
        num: How many, at least 0.
        size: (height, width).
        num_classes: What a digit becomes a class modulo of.
    Returns:
        (float32 (num, height, width) in [0, 1]; int64 (num,)), the same on every machine.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = (digits.images / 16.0).astype(np.float32)
    generator = _generator("digits")
    limits = [max(1, side // 8) for side in size]
    passes = [generator.permutation(len(small)) for _ in range(0, num, len(small))]
    rows = np.concatenate([np.zeros(0, np.int64), *passes])[:num]
    shifts = np.stack([generator.integers(-limit, limit + 1, num) for limit in limits], axis=1)
    shifts[: len(small)] = 0
    images = np.empty((num, *size), np.float32)
    for begin in range(0, num, _BLOCK):
        block = slice(begin, begin + _BLOCK)
        images[block] = _shifted(bilinear(small[rows[block]], size), shifts[block])
    return images, digits.target[rows].astype(np.int64) % num_classes


def noise_images(num: int, size: tuple[int, ...], num_classes: int) -> Arrays:
    """Return images of uniform noise, float32 (num, height, width), and random classes, int64."""
    generator = _generator("noise")
    images = generator.random((num, *size), dtype=np.float32)
    return images, generator.integers(0, num_classes, num)


def bilinear(images: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return images of another size by bilinear interpolation between centres of pixels.

    Beyond the outermost centres the border goes on. Each value is a few sums and products, so that
    it is the same on every machine.

    >>> bilinear(np.array([[[0.0, 1.0]]], np.float32), (1, 4)).tolist()
    [[[0.0, 0.25, 0.75, 1.0]]]

    Args:
        images: float32 (n, height, width).
        size: The new (height, width).
    """
    for axis, wanted in zip((1, 2), size):
        images = interpolated(images, axis, wanted)
    return images


def _shifted(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Return images (n, height, width), each moved down and right by its shifts (n, 2)."""
    height, width = images.shape[1:]
    rows = np.arange(height) - shifts[:, :1]
    columns = np.arange(width) - shifts[:, 1:]
    is_inside = ((rows >= 0) & (rows < height))[:, :, None]
    is_inside = is_inside & ((columns >= 0) & (columns < width))[:, None, :]
    moved: np.ndarray = images[
        np.arange(len(images))[:, None, None],
        rows.clip(0, height - 1)[:, :, None],
        columns.clip(0, width - 1)[:, None, :],
    ]
    moved[~is_inside] = 0
    return moved


def _generator(purpose: str) -> np.random.Generator:
    return np.random.default_rng(public_seed(POLLUTION_SEED, 0, f"pollution {purpose}"))

"""Images of another size, with other colours: public ones in the shape of a study's. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Images that are stretched at once.
_BLOCK = 512
#: What red, green and blue weigh in grey (ITU-R BT.601, as Pillow has it).
_GREY = (0.299, 0.587, 0.114)


def is_stretchable(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Say whether records of a shape are images that can take another one.

    >>> is_stretchable((3, 32, 32), (1, 28, 28)), is_stretchable((64,), (1, 8, 8))
    (True, False)
    """
    are_images = len(shape) == len(wanted) == 3
    return are_images and (shape[0] == wanted[0] or {shape[0], wanted[0]} <= {1, 3})


def stretched(images: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """Return images of another size and with other colours, and nothing else about them changed.

    Each side that grows is interpolated linearly between centres of pixels, each one that shrinks
    is averaged, as networks do it (``image_front.resize_layers``). Grey is repeated for three
    colours; three become grey by .299, .587, .114. Sums and products are made one by one, so that
    the result is the same on every machine.

    >>> stretched(np.array([[[[0.0, 1.0, 2.0, 3.0]]]], np.float32), (1, 1, 2)).tolist()
    [[[[0.5, 2.5]]]]

    Args:
        images: float32 (n, channels, height, width).
        wanted: (channels, height, width) for which ``is_stretchable`` holds.
    Returns:
        float32 (n, *wanted), within the range of each image.
    """
    assert is_stretchable(images.shape[1:], wanted), (images.shape, wanted)
    if images.shape[1:] == tuple(wanted):
        return images
    result = np.empty((len(images), *wanted), np.float32)
    for begin in range(0, len(images), _BLOCK):
        block = images[begin : begin + _BLOCK]
        if block.shape[1] > wanted[0]:
            block = _grey(block)
        for axis, size in ((2, wanted[1]), (3, wanted[2])):
            block = _with_side(block, axis, size)
        result[begin : begin + _BLOCK] = block  # grey for each colour
    return result


def coloured(images: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """Return images of the same size with as many channels as ``wanted`` has; others unchanged.

    >>> coloured(np.ones((1, 1, 2, 2), np.float32), (3, 8, 8)).shape
    (1, 3, 2, 2)
    """
    if not is_stretchable(images.shape[1:], wanted):
        return images
    return stretched(images, (wanted[0], *images.shape[2:]))


def _grey(images: np.ndarray) -> np.ndarray:
    red, green, blue = (images[:, i] * np.float32(share) for i, share in enumerate(_GREY))
    return (red + green + blue)[:, None]


def _with_side(images: np.ndarray, axis: int, size: int) -> np.ndarray:
    length = images.shape[axis]
    if size < length:
        return _averaged(images, axis, size)
    return images if size == length else interpolated(images, axis, size)


def interpolated(images: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Return images with one side of another length, linear between the centres of pixels.

    Beyond the outermost centres the border goes on.
    """
    length = images.shape[axis]
    places = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, length - 1)
    weight = (places - below).astype(np.float32)
    weight = weight.reshape(-1, *[1] * (images.ndim - 1 - axis))
    return images.take(below, axis) * (1 - weight) + images.take(above, axis) * weight


def _averaged(images: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Return images with one side shorter: each pixel is the mean of those that it lies over."""
    length = images.shape[axis]
    rows = np.arange(size)
    begins, ends = rows * length // size, -(-(rows + 1) * length // size)
    counts = ends - begins
    total = images.take(begins, axis)
    for step in range(1, int(counts.max())):
        share = (step < counts).astype(np.float32)
        share = share.reshape(-1, *[1] * (images.ndim - 1 - axis))
        total = total + images.take(np.minimum(begins + step, length - 1), axis) * share
    counts_by_row = counts.astype(np.float32).reshape(-1, *[1] * (images.ndim - 1 - axis))
    return total / counts_by_row

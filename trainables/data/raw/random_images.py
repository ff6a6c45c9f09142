"""Images of a random process, which anybody may generate: dead leaves.

Tang et al. 2023 ("Differentially Private Image Classification by Learning Priors from Random
Processes", NeurIPS, https://arxiv.org/abs/2306.06076) train on the images of an untrained StyleGAN;
dead leaves (Lee, Mumford & Huang 2001; Baradad et al. 2021, "Learning to See by Looking at Noise",
https://arxiv.org/abs/2106.05963) are a process of the same kind that needs no network: ellipses
and rectangles of many sizes, each with a colour and a grating of its own, one over another.
"""

from __future__ import annotations

import numpy as np

from dpsweep.trainables.data.source import Arrays

#: Images that are generated where the spec does not say how many.
NUM_IMAGES = 10_000
_LEAVES = 40
#: Smallest and largest half axis of a leaf, in parts of the side of an image.
_LEAST, _MOST = 0.04, 0.5
_AT_ONCE = 500


def random_images(count: int, shape: tuple[int, int, int], seed: int) -> Arrays:
    """Return images of dead leaves, float32 (count, channels, height, width) in [0, 1].

    The half axes have a density that falls as r^-3, by which images look alike at every scale.

    Guarantees:
        A function of its arguments: no record of anybody is read, so that the images and all that
        is learned from them are public.

    Args:
        count: Number of images.
        shape: (channels, height, width) of one.
        seed: May be known.
    Returns:
        Images and labels, which are all 0: there are no classes.
    """
    generator = np.random.default_rng(seed)
    blocks = [
        _leaves(min(_AT_ONCE, count - begin), shape, generator)
        for begin in range(0, count, _AT_ONCE)
    ]
    return np.concatenate(blocks), np.zeros(count, np.int64)


def _leaves(count: int, shape: tuple[int, int, int], generator: np.random.Generator) -> np.ndarray:
    channels, height, width = shape
    down, across = np.meshgrid(
        np.linspace(0, 1, height, dtype=np.float32),
        np.linspace(0, 1, width, dtype=np.float32),
        indexing="ij",
    )

    def draw(low: float, high: float, *others: int) -> np.ndarray:
        return generator.uniform(low, high, (count, *others, 1, 1)).astype(np.float32)

    images = np.broadcast_to(draw(0, 1, channels), (count, *shape)).copy()
    for _ in range(_LEAVES):
        y, x = down - draw(0, 1), across - draw(0, 1)
        turn = draw(0, np.pi)
        along, aside = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
        # By inversion of the distribution with density r^-3 between the two.
        radius = (_LEAST**-2 - draw(0, 1) * (_LEAST**-2 - _MOST**-2)) ** -0.5
        one, other = np.abs(along) / radius, np.abs(aside) / (radius * draw(0.4, 1))
        is_round = generator.random((count, 1, 1)) < 0.5
        inside = np.where(is_round, np.hypot(one, other), np.maximum(one, other)) < 1
        waves = np.sin(2 * np.pi * (along * draw(0, 12) + draw(0, 1)))
        colour = draw(0, 1, channels) + (draw(-0.3, 0.3) * waves)[:, None]
        images = np.where(inside[:, None], colour, images)
    clipped: np.ndarray = np.clip(images, 0, 1).astype(np.float32)
    return clipped

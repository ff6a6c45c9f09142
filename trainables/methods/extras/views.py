"""Views of images: shifted and mirrored copies whose gradients are averaged before the clip.

Augmentation multiplicity (De et al. 2022, https://arxiv.org/abs/2204.13650, section 3; after Hoffer
et al. 2019 and Fort et al. 2021): an example's gradient is the mean of the gradients of K views of
it. Images are cropped to their size out of themselves with a mirrored border, and mirrored with
probability 1/2.

Guarantees:
    Which views an example has is a function of its own pixels, the step, and a public seed: of no
    other example, and of neither its row nor its place in a batch. So the mean of its gradients is
    one as well, clipping bounds it, and accounting is that without views. The seed is not secret.
    Equal images have equal views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.space.hyperparameters import Beside, Hyperparameter

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo

MULTIPLICITY, KINDS, PADDING = "augment.multiplicity", "augment.kinds", "augment.padding"
_OF_VIEWS = Beside(MULTIPLICITY, (0,), is_among=False)
AUGMENT_HYPERPARAMETERS = (
    Hyperparameter(
        MULTIPLICITY,
        "int",
        0,
        "Views of an image whose gradients are averaged before the clip: each is cropped and "
        "mirrored by chance; 0: the image as it is. No effect on epsilon; a step takes as many "
        "times as long.",
        low=0,
        high=1024,
    ),
    Hyperparameter(
        KINDS,
        "str",
        "crop+flip",
        "What a view is: a crop out of the image with a mirrored border, a mirror image, or both.",
        choices=("crop+flip", "crop", "flip"),
        only_beside=_OF_VIEWS,
    ),
    Hyperparameter(
        PADDING,
        "int",
        4,
        "Width of that border, pixels: the most that a crop shifts.",
        low=1,
        only_beside=_OF_VIEWS,
    ),
)


class Views:
    """Views of the images of a chunk, see the module.

    Attributes:
        multiplicity: K, how many each image has.
        step: Step of training that they are for; whoever trains sets it.
    """

    def __init__(self, multiplicity: int, kinds: str, padding: int, seed: int) -> None:
        self.multiplicity, self.step = multiplicity, 0
        self._is_mirrored = "flip" in kinds
        self._padding = padding if "crop" in kinds else 0
        self._seed = seed
        self._multipliers: torch.Tensor | None = None

    def __call__(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield K views of images, each float32 (batch, channels, height, width) as they are."""
        names = self._names(images)
        for view in range(self.multiplicity):
            yield self._view(images, _mixed(names + _U64(view + 1)))

    def _names(self, images: torch.Tensor) -> NDArray[np.uint64]:
        """Return a number for each image, uint64 (batch,), by its pixels, the step and the seed.

        A sum of products modulo 2^64, exact in whatever order it is added up.
        """
        import torch

        bits = images.flatten(1).contiguous().view(torch.int32)
        if self._multipliers is None or len(self._multipliers) != bits.shape[1]:
            drawn = np.random.default_rng(self._seed).integers(0, 2**63, bits.shape[1])
            self._multipliers = torch.from_numpy(2 * drawn + 1).to(images.device)
        sums = (bits.long() * self._multipliers).sum(dim=1).cpu().numpy().view(np.uint64)
        return _mixed(sums ^ _mixed(np.array([self._seed, self.step], np.uint64)).sum())

    def _view(self, images: torch.Tensor, drawn: NDArray[np.uint64]) -> torch.Tensor:
        """Return one view of each image, by 64 bits that were drawn for it."""
        import torch

        count, channels, height, width = images.shape
        span = _U64(2 * self._padding + 1)
        down, right = (
            (((drawn >> _U64(shift)) & _U64(2**20 - 1)) % span).astype(np.int64) - self._padding
            for shift in (0, 20)
        )
        rows = _mirrored(np.arange(height) + down[:, None], height)
        columns = _mirrored(np.arange(width) + right[:, None], width)
        if self._is_mirrored:
            is_mirrored = (drawn >> _U64(63)) == 1
            columns[is_mirrored] = columns[is_mirrored, ::-1]
        device = images.device
        examples = torch.arange(count, device=device).reshape(-1, 1, 1, 1)
        planes = torch.arange(channels, device=device).reshape(1, -1, 1, 1)
        across = torch.from_numpy(columns).to(device)[:, None, None, :]
        return images[examples, planes, torch.from_numpy(rows).to(device)[:, None, :, None], across]


_U64 = np.uint64


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers that look drawn by chance, one for each (SplitMix64; Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        values = values + _U64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))


def _mirrored(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return places within 0 to size - 1, those up to ``size`` beyond mirrored at the border.

    >>> _mirrored(np.arange(-2, 5), 3).tolist()
    [1, 0, 0, 1, 2, 2, 1]
    """
    places = np.where(places < 0, -1 - places, places)
    return np.where(places >= size, 2 * size - 1 - places, places)


def views_of(hparams: Mapping[str, Any], seed: int) -> Views | None:
    """Return the views that a configuration asks for; None: images stay as they are."""
    multiplicity = int(hparams.get(MULTIPLICITY, 0))  # older records have none
    if multiplicity == 0:
        return None
    return Views(multiplicity, hparams[KINDS], int(hparams[PADDING]), seed)


def view_problems(values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
    """Return what cannot work in any configuration, as ``Method.preflight`` does."""
    most = max(values.get(MULTIPLICITY, [0]))
    if most == 0:
        return []
    if len(info.input_shape) != 3 or info.text is not None:
        shape = "text" if info.text is not None else f"shape {info.input_shape}"
        wrong = f"{most} needs images, and records here have {shape}"
        return [Mistake(MULTIPLICITY, wrong.replace("have text", "are text"), "leave it out")]
    if set(values.get(KINDS, ["crop+flip"])) == {"flip"}:
        return []
    side, least = min(info.input_shape[1:]), min(values.get(PADDING, [4]))
    if least <= side:
        return []
    wrong = f"{least} is more than the {side} pixels of an image, which its border mirrors"
    return [Mistake(PADDING, wrong, f"at most {side}; an eighth of that is usual")]

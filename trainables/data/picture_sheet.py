"""Pictures of chosen records on one sheet, framed by whether their class was predicted.

Figure 4b of Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 5.1): the most central
record of every cluster, those that the network gets wrong in red.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import BadInputError, StorageError
from dpsweep.foundation.file_paths import FilePath

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG = "tab:green", "tab:red"
#: Inches of a tile's picture, and of the line of text below it; margin around the sheet and its
#: title; dots per inch.
TILE, CAPTION, MARGIN, TITLE = 0.9, 0.28, 0.12, 0.4
DPI = 150
#: Points of the frame's line, and of the captions' text at most.
_FRAME, _FONT = 2.5, 8.0
#: Width of a letter over the size of the font, about.
_LETTER = 0.6


def picture_sheet(
    path: FilePath,
    images: torch.Tensor,
    predicted: torch.Tensor,
    true: torch.Tensor,
    *,
    class_names: Sequence[str],
    columns: int = 10,
    title: str = "",
) -> FilePath:
    """Write a PNG with one tile an image: a green frame, or a red one with what went wrong below.

    Guarantees:
        The file shows the images themselves: only public records may be on a sheet. Predictions
        are post-processing of the network and have its privacy.

    Args:
        path: The PNG file; its directory is made.
        images: Float (n, channels, height, width) of 1 or 3 channels; what is not in [0, 1] is
            brought there, and what is not finite is black. At least one.
        predicted: Classes that the network says, int64 (n,).
        true: Classes that the labels say, int64 (n,).
        class_names: One name a class.
        columns: Tiles of a row, at most.
        title: Above all tiles.
    Returns:
        ``path``.
    Raises:
        BadInputError: There is nothing to show, the arguments do not fit each other, or the file
            cannot be written.
    """
    _check(images, predicted, true, class_names, columns)
    figure = _draw(images, predicted.tolist(), true.tolist(), class_names, columns, title)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    try:
        write_atomically(path, buffer.getvalue())
    except StorageError as error:
        raise BadInputError(error.message) from error
    return path


def tile_boxes(count: int, columns: int, *, has_title: bool) -> list[tuple[int, int, int, int]]:
    """Return where the picture of each tile is, in inches * DPI: (left, top, right, bottom).

    >>> tile_boxes(2, 10, has_title=False)[1][0] - tile_boxes(2, 10, has_title=False)[0][0]
    153
    """
    pitch_x, pitch_y = TILE + MARGIN, TILE + CAPTION + MARGIN
    top = MARGIN + (TITLE if has_title else 0.0)
    boxes = []
    for number in range(count):
        row, column = divmod(number, columns)
        x, y = MARGIN + column * pitch_x, top + row * pitch_y
        left, upper, right, lower = (round(DPI * at) for at in (x, y, x + TILE, y + TILE))
        boxes.append((left, upper, right, lower))
    return boxes


def _check(
    images: torch.Tensor,
    predicted: torch.Tensor,
    true: torch.Tensor,
    class_names: Sequence[str],
    columns: int,
) -> None:
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1] not in (1, 3) or 0 in shape:
        raise BadInputError(
            f"no pictures can be drawn of records of shape {shape}",
            fix="give (images, channels, height, width) with 1 or 3 channels",
        )
    if not len(images) == len(predicted) == len(true):
        raise BadInputError(
            f"{len(images)} pictures have {len(predicted)} predictions and {len(true)} classes"
        )
    num_named = len(class_names)
    for classes in (predicted, true):
        if int(classes.min()) < 0 or int(classes.max()) >= num_named:
            raise BadInputError(f"a picture's class is none of the {num_named} that have a name")
    if columns < 1:
        raise BadInputError(f"a row needs at least 1 picture, got {columns}")


def _draw(
    images: torch.Tensor,
    predicted: Sequence[int],
    true: Sequence[int],
    class_names: Sequence[str],
    columns: int,
    title: str,
) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count, has_title = len(images), bool(title)
    columns = min(columns, count)
    boxes = tile_boxes(count, columns, has_title=has_title)
    width = DPI * MARGIN + boxes[columns - 1][2]
    height = DPI * (CAPTION + MARGIN) + boxes[-1][3]
    figure = Figure(figsize=(width / DPI, height / DPI), facecolor="white")
    FigureCanvasAgg(figure)
    for number, (left, top, right, bottom) in enumerate(boxes):
        tile = figure.add_axes(
            (left / width, 1 - bottom / height, (right - left) / width, (bottom - top) / height)
        )
        # `auto` fills the square with pictures that are none, so that every frame is as large.
        tile.imshow(_pixels(images[number]), cmap="gray", vmin=0, vmax=1, aspect="auto")
        tile.set_xticks([])
        tile.set_yticks([])
        is_right = predicted[number] == true[number]
        for side in tile.spines.values():
            side.set_color(RIGHT if is_right else WRONG)
            side.set_linewidth(_FRAME)
        if not is_right:
            caption = f"{class_names[predicted[number]]} -> {class_names[true[number]]}"
            tile.set_xlabel(caption, fontsize=_font_size(caption), labelpad=2.5, parse_math=False)
    if has_title:
        figure.text(
            0.5,
            1 - DPI * TITLE / 2 / height,
            title,
            ha="center",
            va="center",
            fontsize="small",
            parse_math=False,
        )
    return figure


def _pixels(image: torch.Tensor) -> np.ndarray:
    """Return an image as matplotlib takes it: (height, width) or (height, width, 3) in [0, 1]."""
    values = torch.nan_to_num(image.detach().cpu().float(), nan=0.0, posinf=0.0, neginf=0.0)
    array: np.ndarray = values.clamp(0, 1).numpy()
    return array[0] if len(array) == 1 else array.transpose(1, 2, 0)


def _font_size(caption: str) -> float:
    """Return points at which a caption is no wider than its tile, 3 at least."""
    fitting = 72 * (TILE + MARGIN) / (_LETTER * len(caption))
    return max(3.0, min(_FONT, fitting))

"""Pictures of chosen records on one sheet, framed by whether their class was predicted.

Figure 4b of Zhao et al. 2020 (https://arxiv.org/abs/1910.01177, section 5.1): the most central
record of every cluster, those that the network gets wrong in red.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import BadInputError, StorageError
from dpsweep.foundation.file_paths import FilePath

if TYPE_CHECKING:
    import torch

RIGHT, WRONG = "#2ca02c", "#d62728"
#: Inches of a tile's picture, and of the line of text below it; margin around the sheet and its
#: title; dots per inch.
TILE, CAPTION, MARGIN, TITLE = 0.9, 0.28, 0.12, 0.4
DPI = 150
#: Points of the frame's line, of the captions' text at most, and of the title.
_FRAME, _FONT, _HEADING = 2.5, 8.0, 8.5
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
    sheet = _draw(images, predicted.tolist(), true.tolist(), class_names, columns, title)
    buffer = BytesIO()
    sheet.save(buffer, format="png", dpi=(DPI, DPI))
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
) -> Image.Image:
    count, has_title = len(images), bool(title)
    columns = min(columns, count)
    boxes = tile_boxes(count, columns, has_title=has_title)
    width = round(DPI * MARGIN) + boxes[columns - 1][2]
    height = round(DPI * (CAPTION + MARGIN)) + boxes[-1][3]
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    line = round(_FRAME * DPI / 72)
    for number, box in enumerate(boxes):
        left, top, right, bottom = box
        # It fills the square also where it is none, so that every frame is as large.
        sheet.paste(_picture(images[number], (right - left, bottom - top)), (left, top))
        is_right = predicted[number] == true[number]
        half = line // 2
        frame = (left - half, top - half, right + half, bottom + half)
        pen.rectangle(frame, outline=RIGHT if is_right else WRONG, width=line)
        if not is_right:
            caption = f"{class_names[predicted[number]]} -> {class_names[true[number]]}"
            middle = ((left + right) / 2, bottom + line)
            pen.text(middle, caption, "black", _font(_font_size(caption)), anchor="ma")
    if has_title:
        pen.text((width / 2, DPI * TITLE / 2), title, "black", _font(_HEADING), anchor="mm")
    return sheet


def _picture(image: torch.Tensor, size: tuple[int, int]) -> Image.Image:
    """Return an image in a size, grey or RGB; pixels that grow keep their edges."""
    values = np.nan_to_num(image.detach().cpu().float().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
    array = (values.clip(0, 1) * 255).round().astype(np.uint8)
    picture = Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0))
    has_more = picture.width > size[0] or picture.height > size[1]
    return picture.resize(size, Image.Resampling.BOX if has_more else Image.Resampling.NEAREST)


@cache
def _font(points: float) -> ImageFont.FreeTypeFont:
    """Return matplotlib's font, which has Latin, Greek and Cyrillic letters, without loading it."""
    spec = find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), points * DPI / 72)


def _font_size(caption: str) -> float:
    """Return points at which a caption is no wider than its tile, 3 at least."""
    fitting = 72 * (TILE + MARGIN) / (_LETTER * len(caption))
    return max(3.0, min(_FONT, fitting))

"""Sheets of pictures, read back pixel by pixel."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.data import picture_sheet as module
from dpsweep.trainables.data.picture_sheet import (
    RIGHT,
    WRONG,
    picture_sheet,
    tile_boxes,
)

NAMES = ("cat", "dog", "$owl", "Trouser$x^^")


def pixels(path: Path) -> np.ndarray:
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.float64) / 255


def frame_of(sheet: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """The colours along the four sides of a tile, (pixels, 3)."""
    left, top, right, bottom = box
    across, down = slice(left + 3, right - 3), slice(top + 3, bottom - 3)
    sides = (sheet[top, across], sheet[bottom, across], sheet[down, left], sheet[down, right])
    return np.concatenate(sides)


def is_colour(found: np.ndarray, name: str) -> bool:
    return bool((np.abs(found - to_rgb(name)) < 0.1).all())


def text_below(sheet: np.ndarray, box: tuple[int, int, int, int]) -> int:
    """Dark pixels under a tile."""
    left, _, right, bottom = box
    under = sheet[bottom + 6 : bottom + round(module.DPI * module.CAPTION), left:right]
    return int((under.max(axis=2) < 0.5).sum())


@pytest.mark.parametrize(("channels", "title"), [(1, ""), (3, "of $clusters_")])
def test_frames_and_captions_are_where_they_belong(
    tmp_path: Path, channels: int, title: str
) -> None:
    true = torch.arange(23) % 4
    predicted = true.clone()
    wrong = [0, 7, 11, 22]
    predicted[wrong] = (predicted[wrong] + 1) % 4
    images = torch.full((23, channels, 9, 9), 0.5)
    path = tmp_path / "new" / "sheet.png"
    given = {"class_names": NAMES, "columns": 6, "title": title}
    assert picture_sheet(path, images, predicted, true, **given) == path
    sheet = pixels(path)
    boxes = tile_boxes(23, 6, has_title=bool(title))
    assert len(set(boxes)) == 23
    for number, box in enumerate(boxes):
        colour = WRONG if number in wrong else RIGHT
        assert is_colour(frame_of(sheet, box), colour), number
        assert (text_below(sheet, box) > 10) is (number in wrong), number
    right, bottom = max(b[2] for b in boxes), max(b[3] for b in boxes)
    height, width, _ = sheet.shape
    assert right < width < right + 40
    assert bottom < height < bottom + 100
    assert bool((sheet[: boxes[0][1] - 6] < 0.5).any()) is bool(title)


def test_a_tile_shows_its_picture(tmp_path: Path) -> None:
    """Rows of a picture go down and colours are red, green, blue."""
    images = torch.zeros(3, 3, 2, 2)
    images[0, 0, 0, 1] = 1.0  # red, top right
    images[1] = 0.25
    images[2, :, 1, 0] = torch.tensor([float("nan"), float("inf"), 7.0])
    classes = torch.tensor([1, 1, 1])
    sheet = pixels(picture_sheet(tmp_path / "s.png", images, classes, classes, class_names=NAMES))
    corners = []
    for left, top, right, bottom in tile_boxes(3, 10, has_title=False):
        step_x, step_y = (right - left) // 4, (bottom - top) // 4
        corners.append([[sheet[y, x].round(1).tolist() for x in (left + step_x, right - step_x)]
                        for y in (top + step_y, bottom - step_y)])  # fmt: skip
    black = [0.0, 0.0, 0.0]
    assert corners[0] == [[black, [1.0, 0.0, 0.0]], [black, black]]
    grey = [pytest.approx(0.25, abs=0.06)] * 3
    assert corners[1] == [[grey, grey], [grey, grey]]
    assert corners[2] == [[black, black], [[0.0, 0.0, 1.0], black]]


def test_grey_is_not_stretched_to_the_range_of_its_picture(tmp_path: Path) -> None:
    images = torch.full((1, 1, 4, 4), 0.4)
    images[0, 0, 0, 0] = 0.6
    one = torch.tensor([0])
    sheet = pixels(picture_sheet(tmp_path / "s.png", images, one, one, class_names=NAMES))
    (left, top, right, bottom) = tile_boxes(1, 10, has_title=False)[0]
    assert sheet[(top + bottom) // 2 + 9, (left + right) // 2 + 9] == pytest.approx(0.4, abs=0.02)


def test_a_hundred_tiles_can_be_read(tmp_path: Path) -> None:
    """No caption, however long, reaches into the picture beside it; every tile is 135 dots wide."""
    true = torch.full((100,), 3)
    predicted = torch.where(torch.arange(100) % 2 == 0, 0, 3)
    names = ("x" * 25, "b", "c", "y" * 20)
    path = tmp_path / "s.png"
    picture_sheet(path, torch.ones(100, 1, 8, 8), predicted, true, class_names=names)
    sheet, boxes = pixels(path), tile_boxes(100, 10, has_title=False)
    for number, box in enumerate(boxes):
        assert box[2] - box[0] == 135
        assert is_colour(frame_of(sheet, box), RIGHT if number % 2 else WRONG)
        if number % 2:  # beside one with a caption
            middle = (box[0] + 12, box[1], box[2] - 12, box[3])
            assert text_below(sheet, middle) == 0


def test_no_global_figure_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would fail
    one = torch.tensor([0])
    path = picture_sheet(tmp_path / "s.png", torch.rand(1, 1, 4, 4), one, one, class_names=NAMES)
    first = path.read_bytes()
    assert path == picture_sheet(path, torch.rand(1, 1, 4, 4), one, one, class_names=NAMES)
    assert path.read_bytes() != first


@pytest.mark.parametrize(
    ("shape", "predicted", "true", "more", "word"),
    [
        ((0, 1, 4, 4), [], [], {}, r"shape \(0, 1, 4, 4\)"),
        ((2, 2, 4, 4), [0, 1], [0, 1], {}, "no pictures"),
        ((2, 16), [0, 1], [0, 1], {}, "no pictures"),
        ((2, 1, 4, 4), [0], [0, 1], {}, "2 pictures have 1 predictions and 2 classes"),
        ((2, 1, 4, 4), [0, 4], [0, 1], {}, "none of the 4"),
        ((2, 1, 4, 4), [0, 1], [0, -1], {}, "none of the 4"),
        ((2, 1, 4, 4), [0, 1], [0, 1], {"columns": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path,
    shape: tuple[int, ...],
    predicted: list[int],
    true: list[int],
    more: dict[str, int],
    word: str,
) -> None:
    classes = [torch.tensor(given, dtype=torch.int64) for given in (predicted, true)]
    path = tmp_path / "s.png"
    with pytest.raises(BadInputError, match=word):
        picture_sheet(path, torch.zeros(shape), *classes, class_names=NAMES, **more)
    assert not path.exists()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = torch.tensor([0])
    with pytest.raises(BadInputError, match="cannot write"):
        picture_sheet(
            tmp_path / "file" / "s.png", torch.rand(1, 1, 4, 4), one, one, class_names=NAMES
        )

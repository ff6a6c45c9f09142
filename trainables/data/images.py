"""Folders of images, one folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.raw.preparation import ImageRecords, RecordError
from dpsweep.trainables.data.source import Arrays, Source, declared_size, path_of

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")


def open_image_folder(spec: DataSpec) -> Source:
    """Return the source of ``dataset: image_folder``."""
    root = path_of(spec, "a directory with one folder per class")
    if not root.is_dir():
        raise DataError(f"no directory {root}", fix="set data.path to an existing directory")
    height, width = _image_size(spec)
    channels = 3 if spec.channels is None else int(spec.channels)
    if channels not in (1, 3):
        raise DataError(f"data.channels must be 1 or 3, got {channels}")
    folders = {"train": root / "train" if (root / "train").is_dir() else root}
    if folders["train"] != root:
        for part, name in (("validation", "val"), ("test", "test")):
            if (root / name).is_dir():
                folders[part] = root / name
    classes = tuple(sorted(p.name for p in folders["train"].iterdir() if _is_class_folder(p)))
    if len(classes) < 2:
        raise DataError(
            f"{folders['train']} has {len(classes)} class folders",
            fix="lay the images out as CLASS/NAME.png, or train/CLASS/NAME.png",
        )
    if spec.num_classes is not None and spec.num_classes != len(classes):
        raise DataError(
            f"data.num_classes={spec.num_classes}, but there are {len(classes)} class folders"
        )
    preparation = ImageRecords(channels, height, width)
    files = {part: _image_files(folder, classes) for part, folder in folders.items()}
    _refuse_empty_class(folders["train"], classes, files["train"])

    def read() -> dict[str, Arrays]:
        return {part: _read_images(listed, preparation) for part, listed in files.items()}

    return Source(
        preparation.shape,
        len(classes),
        classes,
        declared_size(spec),
        len(files["validation"]) if "validation" in files else None,
        len(files["test"]) if "test" in files else None,
        read,
        lambda part: np.array([label for _, label in files[part]], np.int64),
        num_found=len(files["train"]),
        preparation=preparation,
    )


def open_photos(spec: DataSpec) -> Source:
    """Return a folder of images of no class, whichever folders they lie in; every label is -1.

    Raises:
        DataError: There is no such directory, or no image in it.
    """
    root = path_of(spec, "a directory of images")
    if not root.is_dir():
        raise DataError(f"no directory {root}", fix="set data.path to an existing directory")
    if (root / "train").is_dir():
        root = root / "train"
    paths = [path for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES]
    files = [(path, -1) for path in sorted(paths) if "__MACOSX" not in path.parts]
    if not files:
        raise DataError(f"{root} has no images", fix=f"put {', '.join(IMAGE_SUFFIXES)} there")
    channels = 3 if spec.channels is None else int(spec.channels)
    preparation = ImageRecords(channels, *_image_size(spec))
    return Source(
        preparation.shape,
        2,
        ("0", "1"),
        declared_size(spec),
        None,
        None,
        lambda: {"train": _read_images(files, preparation)},
        num_found=len(files),
        preparation=preparation,
    )


def _image_size(spec: DataSpec) -> tuple[int, int]:
    """Return (height, width); a single number stands for a square."""
    size = spec.image_size
    if size is None:
        raise DataError(
            "data.image_size is missing for image_folder",
            because="shapes must be known before an image is opened",
            fix="give the height and width to resize to",
        )
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def _is_class_folder(path: Path) -> bool:
    """Say whether a folder may be a class: not one that an archive or an editor has left."""
    return path.is_dir() and not path.name.startswith(".") and path.name != "__MACOSX"


def _image_files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return (path, class number) of every image, in the order of their relative paths."""
    unknown = [p.name for p in folder.iterdir() if _is_class_folder(p) and p.name not in classes]
    if unknown:
        raise DataError(f"{folder} has a class that train lacks: {sorted(unknown)[0]}")
    paths = []
    for label, name in enumerate(classes):
        if (folder / name).is_dir():
            for path in (folder / name).iterdir():
                if path.suffix.lower() in IMAGE_SUFFIXES:
                    paths.append((path, label))
    return sorted(paths)


def _refuse_empty_class(
    folder: Path, classes: tuple[str, ...], paths: list[tuple[Path, int]]
) -> None:
    """Refuse a folder without images: it would be a class that no record has."""
    filled = {label for _, label in paths}
    empty = [name for label, name in enumerate(classes) if label not in filled]
    if paths and empty:
        raise DataError(
            f"{folder / empty[0]} has no images, and every folder there is a class",
            fix="remove it, or put its images there",
        )


def _read_images(files: list[tuple[Path, int]], preparation: ImageRecords) -> Arrays:
    find = "its name stays unsaid, as it tells which record it is; open each of them with PIL"
    inputs = np.empty((len(files), *preparation.shape), np.float32)
    for row, (path, _) in enumerate(files):
        try:
            inputs[row] = preparation.read(path)
        except RecordError as error:
            fix = f"mend or remove it; {find}"
            if error.__cause__ is None:  # it can be read, and has 16 bits
                because = "a conversion to 8 bits would cut its values off"
                fix = f"convert such images to 8 bits, all by the same fixed scale; {find}"
                raise DataError(str(error), because=because, fix=fix) from None
            raise DataError(str(error), fix=fix) from error.__cause__
    return inputs, np.array([label for _, label in files], np.int64)

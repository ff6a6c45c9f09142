"""Folders of images: one folder for each class, or a table of labels beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.kept.keep import Encoded, Keep, decoded, stamp_of
from dpsweep.trainables.data.raw.preparation import ImageRecords
from dpsweep.trainables.data.source import (
    OWN_PARTS,
    Arrays,
    KeptRead,
    Source,
    declared_size,
    path_of,
)
from dpsweep.trainables.data.vision.label_table import LABELS, classes_of_table, labelled_images

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

#: What Pillow reads by itself: without another program, as PostScript needs one, and no films,
#: pages or fields of numbers. Written down, so that a newer Pillow finds no other records.
IMAGE_SUFFIXES = (
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".webp", ".avif"),
    *(".avifs", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpc"),
    *(".jpf", ".jpx", ".j2c", ".tga", ".icb", ".vda", ".vst", ".ico", ".icns", ".cur", ".pcx"),
    *(".dcx", ".sgi", ".rgb", ".rgba", ".bw", ".dds", ".psd", ".xbm", ".xpm", ".qoi", ".im"),
    *(".ras", ".pcd", ".pxr", ".blp", ".ftc", ".ftu"),
)
#: What cameras and programs write besides, which would be passed over without a word.
UNREAD_SUFFIXES = (
    *(".heic", ".heif", ".hif", ".jxl", ".svg", ".eps", ".pdf"),
    *(".dng", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2"),
)
#: Side of images where none is declared: what most published networks take.
DEFAULT_SIDE = 224


def open_image_folder(spec: DataSpec) -> Source:
    """Return the source of ``dataset: image_folder``.

    Raises:
        DataError: It is missing, or not laid out as described in docs/data.md.
    """
    root = path_of(spec, "a directory with one folder per class, or with labels.csv")
    if not root.is_dir():
        raise DataError(f"no directory {root}", fix="set data.path to an existing directory")
    preparation = image_records(spec)
    is_table = any((folder / LABELS).is_file() for folder in (root, root / "train"))
    is_parted = (root / "train").is_dir() and not (root / LABELS).is_file()
    folders = _folders_of_parts(root) if is_parted else {"train": root}
    if is_table:
        classes = classes_of_table(spec)
        files = {part: _of_table(folder, classes) for part, folder in folders.items()}
    else:
        classes = _class_folders(folders["train"], spec)
        files = {part: _image_files(folder, classes) for part, folder in folders.items()}

    notes = _unused_notes(root, folders) if is_parted else []
    if not is_table:
        notes += map(_beside_note, filter(_has_images, folders.values()))

    def labels_of(part: str) -> np.ndarray:
        return np.array([label for _, label in files[part]], np.int64)

    def read(keep: Keep | None = None) -> dict[str, Arrays]:
        encoded = {part: encoded_files([path for path, _ in files[part]]) for part in files}
        inputs = decoded(encoded, preparation, keep, declared=declared_size(spec))
        return {part: (inputs[part], labels_of(part)) for part in files}

    return Source(
        preparation.shape,
        len(classes),
        classes,
        declared_size(spec),
        len(files["validation"]) if "validation" in files else None,
        len(files["test"]) if "test" in files else None,
        read,
        labels_of,
        num_found=len(files["train"]),
        preparation=preparation,
        read_kept=KeptRead(read, read),
        notes=tuple(notes),
    )


def open_photos(spec: DataSpec) -> Source:
    """Return a folder of images of no class, whichever folders they lie in; every label is -1.

    Raises:
        DataError: There is no such directory, or no image in it.
    """
    root = path_of(spec, "a directory of images")
    if not root.is_dir():
        raise DataError(f"no directory {root}", fix="set data.path to an existing directory")
    paths = sorted(_images_below(root / "train" if (root / "train").is_dir() else root))
    if not paths:
        raise DataError(f"{root} has no images", fix="put images there that Pillow reads")
    preparation = image_records(spec)

    def read(keep: Keep | None = None) -> dict[str, Arrays]:
        encoded = {"train": encoded_files(paths)}
        inputs = decoded(encoded, preparation, keep, declared=declared_size(spec))
        return {"train": (inputs["train"], np.full(len(paths), -1, np.int64))}

    return Source(
        preparation.shape,
        2,
        ("0", "1"),
        declared_size(spec),
        None,
        None,
        read,
        num_found=len(paths),
        preparation=preparation,
        read_kept=KeptRead(read, read),
    )


def image_records(spec: DataSpec) -> ImageRecords:
    """Return how images of a spec's ``data`` section are read."""
    size = DEFAULT_SIDE if spec.image_size is None else spec.image_size
    height, width = (size, size) if isinstance(size, int) else size
    channels = 3 if spec.channels is None else int(spec.channels)
    return ImageRecords(channels, int(height), int(width), spec.resize)


def encoded_files(paths: Sequence[Path]) -> Encoded:
    """Return the images of some files."""
    return Encoded(paths, lambda: stamp_of(paths))


def _folders_of_parts(root: Path) -> dict[str, Path]:
    """Return the folder of each part that is there; of two names of one, the first."""
    folders = {"train": root / "train"}
    for part, names in OWN_PARTS.items():
        there = [root / name for name in names if (root / name).is_dir()]
        if there:
            folders[part] = there[0]
    return folders


def _unused_notes(root: Path, folders: Mapping[str, Path]) -> list[str]:
    """Return a line on folders beside those of parts that hold images, if there are any."""
    others = sorted(p for p in root.iterdir() if _is_class_folder(p) and p not in folders.values())
    unused = [path.name for path in others if any(_images_below(path))]
    if not unused:
        return []
    return [
        f"folders of {root} that are not used: {', '.join(unused[:10])}; "
        "parts are called train, val and test"
    ]


def _class_folders(folder: Path, spec: DataSpec) -> tuple[str, ...]:
    classes = tuple(sorted(p.name for p in folder.iterdir() if _is_class_folder(p)))
    if len(classes) < 2:
        raise DataError(
            f"{folder} has {len(classes)} class folders",
            fix="lay the images out as CLASS/NAME.png, or train/CLASS/NAME.png; or write a table "
            "labels.csv with the columns file and label",
        )
    if spec.num_classes is not None and spec.num_classes != len(classes):
        raise DataError(
            f"data.num_classes={spec.num_classes}, but there are {len(classes)} class folders",
            fix="leave data.num_classes out: folders are the classes",
        )
    return classes


def _has_images(folder: Path) -> bool:
    """Say whether images lie in a folder itself, and in no folder of a class."""
    return any(_is_image(path) and path.is_file() for path in folder.iterdir())


def _beside_note(folder: Path) -> str:
    return f"{folder} has images beside the folders of classes: they are in no class, and not read"


def _of_table(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    if not (folder / LABELS).is_file():
        raise DataError(
            f"{folder} has no {LABELS}, and another part has one", fix="give each part its own"
        )
    return labelled_images(folder, list(_images_below(folder)), classes)


def _images_below(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and in all folders below, but for those of archives."""
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if _is_class_folder(Path(place, name))]
        for name in files:
            if _is_image(path := Path(place, name)):
                yield path


def _is_image(path: Path) -> bool:
    """Say whether a file is an image by its name, and not one that an archive has left."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith("._")


def _is_class_folder(path: Path) -> bool:
    """Say whether a folder may be a class: not one that an archive or an editor has left."""
    return path.is_dir() and not path.name.startswith(".") and path.name != "__MACOSX"


def _image_files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Return (path, class number) of every image, in the order of their relative paths.

    A folder is a class with or without images: whether a class has a record is private.
    """
    unknown = [p.name for p in folder.iterdir() if _is_class_folder(p) and p.name not in classes]
    if unknown:
        raise DataError(
            f"{folder} has a class that train lacks: {sorted(unknown)[0]}",
            fix="take that folder away, or add one of the same name to train, which may be empty",
        )
    paths = []
    for label, name in enumerate(classes):
        if (folder / name).is_dir():
            for path in (folder / name).iterdir():
                if path.suffix.lower() in IMAGE_SUFFIXES:
                    paths.append((path, label))
                elif path.suffix.lower() in UNREAD_SUFFIXES:
                    raise DataError(
                        f"{folder / name} has {path.suffix.lower()} files, which Pillow does not "
                        "read by itself",
                        fix="convert them, to PNG or JPEG for instance, or take them away",
                    )
                elif _is_class_folder(path) and any(_images_below(path)):
                    raise DataError(
                        f"{folder / name} has images in folders of its own, and a class is one "
                        "folder",
                        fix="move them up into it; or write a table labels.csv with the columns "
                        "file and label",
                    )
    return sorted(paths)

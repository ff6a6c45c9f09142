"""CelebA: faces with 40 attributes, each there or not, in its authors' files or Kaggle's.

Source: Liu et al. 2015, https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.spec.data.class_names import metric_problem
from dpsweep.spec.data.datasets import PUBLISHED_RECORDS
from dpsweep.trainables.data.images import encoded_files, image_records
from dpsweep.trainables.data.kept.keep import Keep, decoded
from dpsweep.trainables.data.source import Arrays, KeptRead, Source, path_of

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

_IMAGES, _ATTRIBUTES, _PARTITION = "img_align_celeba", "list_attr_celeba", "list_eval_partition"
#: Parts by their number in the partition.
_PARTS = {"0": "train", "1": "validation", "2": "test"}
_GET_AGAIN = "get the files again, as the authors and torchvision have them"


def open_celeba(spec: DataSpec) -> Source:
    """Return the source of ``dataset: celeba``, with the partition of its authors.

    With ``task: multi_label`` the labels are the attributes of ``data.attributes``, or all 40; with
    classification those of one attribute, of which a face has class 1. Names of attributes, files
    and parts are read at once, images and attributes of a face when asked.

    Raises:
        DataError: A file is missing or damaged, or an attribute is none of it.
    """
    root = path_of(spec, f"the directory of {_IMAGES}, {_ATTRIBUTES}.txt and {_PARTITION}.txt")
    attributes, partition = _table(root, _ATTRIBUTES), _table(root, _PARTITION)
    images = root / _IMAGES
    images = images / _IMAGES if (images / _IMAGES).is_dir() else images
    places = {f"{_ATTRIBUTES}.txt": attributes, f"{_PARTITION}.txt": partition}
    missing = [name for name, place in places.items() if place is None]
    missing += [] if images.is_dir() else [f"{_IMAGES}/"]
    if attributes is None or partition is None or missing:
        raise DataError(
            f"celeba: {', '.join(missing)} not found in {root}",
            fix="set data.path to the directory of these, where torchvision unpacks them",
        )
    names = _attribute_names(attributes)
    chosen = tuple(spec.attributes or names)
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise DataError(
            f"data.attributes has {unknown[0]!r}, which is no attribute in {attributes.name}",
            fix=did_you_mean(unknown[0], names) or f"there are: {', '.join(names)}",
        )
    for problem, fix in map(metric_problem, chosen):
        if problem:
            raise DataError(f"{attributes.name} has an attribute {problem}", fix=fix)
    is_one = spec.task == "classification"
    classes = (f"not {chosen[0]}", chosen[0]) if is_one else chosen
    if spec.num_classes not in (None, len(classes)):
        raise DataError(
            f"data.num_classes={spec.num_classes}, and data.attributes makes {len(classes)}",
            fix="remove it",
        )
    files = _files(partition, images)
    preparation = image_records(spec)
    columns = [names.index(name) for name in chosen]
    declared = PUBLISHED_RECORDS["celeba"] if spec.num_records is None else int(spec.num_records)

    def labels_of(part: str) -> np.ndarray:
        rows = _rows(attributes, [path.name for path in files[part]], columns)
        return rows[:, 0].astype(np.int64) if is_one else rows.astype(np.float32)

    def read(keep: Keep | None = None) -> dict[str, Arrays]:
        labels = {part: labels_of(part) for part in files}
        encoded = {part: encoded_files(paths) for part, paths in files.items()}
        inputs = decoded(encoded, preparation, keep, declared=declared)
        return {part: (inputs[part], labels[part]) for part in files}

    return Source(
        preparation.shape,
        len(classes),
        classes,
        declared,
        len(files["validation"]),
        len(files["test"]),
        read,
        labels_of,
        num_found=len(files["train"]),
        tasks=frozenset({"classification", "multi_label"}),
        preparation=preparation,
        read_kept=KeptRead(read, read),
    )


def _table(root: Path, name: str) -> Path | None:
    """Return a table of the authors, or of Kaggle's copy; None if there is none."""
    places = (root / f"{name}.txt", root / f"{name}.csv")
    return next((place for place in places if place.is_file()), None)


def _lines(table: Path) -> Iterator[list[str]]:
    """Yield the words of each line of a table.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with table.open(encoding="utf-8-sig") as file:
            for line in file:
                words = line.replace(",", " ").split()
                if words:
                    yield words
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {table}: {type(error).__name__}", fix=_GET_AGAIN) from None


def _attribute_names(table: Path) -> tuple[str, ...]:
    """Return the names in the header: after a line with a number, or after ``image_id``.

    Raises:
        DataError: There are none, or one is there twice.
    """
    for words in _lines(table):
        if len(words) > 1:
            names = tuple(words[1:] if words[0] == "image_id" else words)
            if len(set(names)) < len(names):
                raise DataError(f"{table} names an attribute twice", fix=_GET_AGAIN)
            return names
    raise DataError(f"{table} names no attributes", fix=_GET_AGAIN)


def _files(table: Path, images: Path) -> dict[str, list[Path]]:
    """Return the images of each part, in the order of the partition.

    Raises:
        DataError: It is no such table, names an image that is not there, or leaves one out.
    """
    files: dict[str, list[Path]] = {part: [] for part in _PARTS.values()}
    for words in _lines(table):
        if words[0] == "image_id":
            continue
        if len(words) != 2 or words[1] not in _PARTS:
            raise DataError(f"{table} has a line that is not FILE 0, 1 or 2", fix=_GET_AGAIN)
        files[_PARTS[words[1]]].append(images / words[0])
    listed = [path.name for paths in files.values() for path in paths]
    there = {path.name for path in images.iterdir() if not path.name.startswith(".")}
    if len(set(listed)) != len(listed) or set(listed) != there:
        raise DataError(
            f"{table} does not name each image of {images} once",
            because="there are images without a part, or parts without an image",
            fix=_GET_AGAIN,
        )
    empty = [part for part, paths in files.items() if not paths]
    if empty:
        raise DataError(f"{table} has no image of the part {empty[0]}", fix=_GET_AGAIN)
    return files


def _rows(table: Path, names: Sequence[str], columns: Sequence[int]) -> np.ndarray:
    """Return attributes of some images, bool (images, len(columns)): of -1 and 1, which are 1.

    Raises:
        DataError: One has none, or others than -1 and 1, or has them twice; which one stays unsaid.
    """
    place = {name: row for row, name in enumerate(names)}
    values, seen = np.zeros((len(names), len(columns)), bool), np.zeros(len(names), bool)
    width = len(_attribute_names(table))
    for words in _lines(table):
        row = place.get(words[0])
        if row is None:
            continue
        if seen[row]:
            raise DataError(f"{table} names an image twice", fix=_GET_AGAIN)
        if len(words) != width + 1 or not {"-1", "1"} >= set(words[1:]):
            raise DataError(f"{table} has an image without {width} times -1 or 1", fix=_GET_AGAIN)
        values[row] = [words[1 + column] == "1" for column in columns]
        seen[row] = True
    if not seen.all():
        raise DataError(f"{table} lacks the attributes of an image", fix=_GET_AGAIN)
    return values

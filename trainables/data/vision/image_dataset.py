"""Images in a directory of Hugging Face ``datasets``, as ``save_to_disk`` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.data.images import image_records
from dpsweep.trainables.data.kept.keep import Encoded, Keep, decoded, stamp_of
from dpsweep.trainables.data.raw.saved import saved_splits
from dpsweep.trainables.data.source import (
    Arrays,
    KeptRead,
    Source,
    checked_labels,
    declared_size,
    path_of,
)

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

#: Our names of the parts -> those of their splits.
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def open_image_dataset(spec: DataSpec) -> Source:
    """Return the source of ``dataset: image_dataset``.

    Its one column of images is read, and its one column of classes or ``data.label_column``. Names
    of classes are those of the column, where it has any. Splits validation and test are parts of
    their own. Headers are read at once, records when asked.

    Raises:
        DataError: It is no such directory, lacks a column, or the package is not installed.
    """
    path = path_of(spec, "a directory of datasets.save_to_disk")
    splits = _splits(path)
    train = splits["train"]
    image = _image_column(train.features, path)
    label = _label_column(train.features, spec, path)
    for part, split in splits.items():
        if any(
            str(split.features.get(name)) != str(train.features[name]) for name in (image, label)
        ):
            raise DataError(
                f"{path.name}: {image} and {label} of {part} are not as in train",
                fix="save all splits with the same features",
            )
    names = _class_names(train.features[label], spec, label)
    preparation = image_records(spec)

    def labels_of(part: str) -> np.ndarray:
        column = splits[part].select_columns([label]).with_format("numpy")
        numbers = np.asarray(column[:][label] if len(column) else [], None)
        if len(numbers) and numbers.dtype.kind not in "iu":
            raise DataError(f"{path.name}: {part} has records without a label", fix="remove them")
        return checked_labels(numbers, len(names), f"{path.name}: {label} of {part}")

    def read(keep: Keep | None = None) -> dict[str, Arrays]:
        labels = {part: labels_of(part) for part in splits}
        encoded = {part: _encoded(split, image) for part, split in splits.items()}
        inputs = decoded(encoded, preparation, keep, declared=declared_size(spec))
        return {part: (inputs[part], labels[part]) for part in splits}

    return Source(
        preparation.shape,
        len(names),
        names,
        declared_size(spec),
        len(splits["validation"]) if "validation" in splits else None,
        len(splits["test"]) if "test" in splits else None,
        read,
        labels_of,
        num_found=len(train),
        preparation=preparation,
        read_kept=KeptRead(read, read),
    )


def _splits(path: Path) -> dict[str, Any]:
    """Return our parts with their splits; maps files into memory and reads no record."""
    if not path.is_dir():
        raise DataError(f"no directory {path}", fix="correct data.path")
    splits = saved_splits(
        path, instead="store the images in folders (image_folder)", fix="give such a directory"
    )
    parts = {part: splits[key] for part, keys in _SPLITS.items() for key in keys if key in splits}
    if "train" not in parts:
        raise DataError(
            f"{path} has no split train",
            because=f"it has {', '.join(splits)}",
            fix="save a DatasetDict with a split train",
        )
    return parts


def _image_column(features: Any, path: Path) -> str:
    import datasets

    names = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if len(names) != 1:
        seen = ", ".join(names) or ", ".join(f"{name} ({features[name]})" for name in features)
        raise DataError(
            f"{path.name} has {len(names) or 'no'} columns of images",
            because=f"it has {seen}"[:300],
            fix="keep one: dataset.select_columns([...]), or cast_column(NAME, datasets.Image())",
        )
    return str(names[0])


def _label_column(features: Any, spec: DataSpec, path: Path) -> str:
    import datasets

    if spec.label_column is not None:
        if spec.label_column not in features:
            names = list(features)
            hint = did_you_mean(spec.label_column, names) or f"there are: {', '.join(names)}"
            raise DataError(
                f"{path.name} has no column {spec.label_column!r}",
                fix=f"set data.label_column; {hint}",
            )
        return spec.label_column
    names = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    names = names or [name for name in ("label", "labels") if name in features]
    if len(names) != 1:
        seen = ", ".join(names or features)
        raise DataError(
            f"{path.name} has {len(names) or 'no'} columns of classes",
            because=f"it has {seen}",
            fix="name one: data.label_column",
        )
    return str(names[0])


def _class_names(kind: Any, spec: DataSpec, label: str) -> tuple[str, ...]:
    """Return the names of a column of classes; numbers where it has none and they are declared."""
    import datasets

    if isinstance(kind, datasets.ClassLabel):
        if spec.num_classes not in (None, kind.num_classes):
            raise DataError(
                f"data.num_classes={spec.num_classes}, but {label} has {kind.num_classes} classes",
                fix="leave data.num_classes out",
            )
        return tuple(str(name) for name in kind.names)
    if not str(getattr(kind, "dtype", "")).startswith(("int", "uint")):
        raise DataError(
            f"{label} is no column of classes: {kind}"[:200],
            fix="name another data.label_column, or class_encode_column it before saving",
        )
    if spec.num_classes is None:
        raise DataError(
            f"data.num_classes is missing: {label} does not name its classes",
            because="the labels are private, so the number of classes must be declared",
            fix="set data.num_classes",
        )
    return tuple(str(number) for number in range(spec.num_classes))


def _encoded(split: Any, image: str) -> Encoded:
    import datasets

    bare = split.cast_column(image, datasets.Image(decode=False))

    def stamp() -> str:
        files = [Path(file["filename"]) for file in split.cache_files]
        # The fingerprint names which rows of the files these are, and in which order.
        return f"{stamp_of(files)} {split._fingerprint} {image}"

    return Encoded(_Images(bare, image), stamp)


class _Images(Sequence[Any]):
    """The images of a split, each as its bytes, or as the path of its file."""

    def __init__(self, split: Any, image: str) -> None:
        self._split, self._image = split, image

    def __len__(self) -> int:
        return len(self._split)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int):
            return self[index : index + 1][0]
        return [_source(record) for record in self._split[index][self._image]]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))


def _source(record: Any) -> Any:
    """Return what an image is read from; b"" where there is none."""
    if record is None:
        return b""
    return record["bytes"] if record["bytes"] is not None else record["path"]

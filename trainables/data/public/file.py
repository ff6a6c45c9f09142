"""Public records of another file, as records of a study: its shape, its classes, its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.words import counted
from dpsweep.spec.data.datasets import BUILT_IN
from dpsweep.spec.data.evaluation import ValidationSpec
from dpsweep.spec.data.places import about_file, kind_beside
from dpsweep.spec.data.section import DataSpec
from dpsweep.spec.data.texts import TEXT_KEYS
from dpsweep.trainables.data.class_split import only
from dpsweep.trainables.data.images import open_photos
from dpsweep.trainables.data.npz import npz_array, npz_headers, open_npz
from dpsweep.trainables.data.public.rows import first_of_each
from dpsweep.trainables.data.public.stretching import is_stretchable, stretched
from dpsweep.trainables.data.source import Arrays, Source
from dpsweep.trainables.data.sources import open_source

if TYPE_CHECKING:
    from dpsweep.spec.data.public import Pollution, PublicSpec

#: Fixes which records of a file are used, and which of them are validation records. Public.
FILE_SEED = 20_211_009
_TEXT_KEYS = ("tokenizer", "max_length", *(key for key in TEXT_KEYS if key != "splits"))


@dataclass(frozen=True)
class PublicFile:
    """The public records of another file, of which nothing has been read but headers and names.

    Attributes:
        spec: The study's ``data`` section.
        own: Source of the study's own records, with ``data.classes`` applied.
        source: Source of the file, as it is.
        numbers: The study's number of each class of the file; None where numbers are the same.
    """

    spec: DataSpec
    own: Source
    source: Source
    numbers: np.ndarray | None

    @property
    def about(self) -> str:
        """The file, in words."""
        return about_file(self.spec.public, self.spec)

    @cached_property
    def num_records(self) -> int:
        """Records of the task's classes; reads labels where ``data.classes`` names them."""
        if self._has_all_classes:
            size = self.source.num_found
            return self.source.num_records if size is None else size
        return len(self._rows(self._labels()))

    @property
    def num_validation(self) -> int:
        """Records of the validation part; 0 where that is none of the file's."""
        return round(self.spec.public.validation * self.num_records)

    @property
    def num_public(self) -> int:
        """Records of the public part, without pollution."""
        public, number = self.spec.public, self.num_records - self.num_validation
        if public.per_class is not None:
            number = public.per_class * self.own.num_classes
        return number if public.max_records is None else min(number, public.max_records)

    def read_labels(self) -> np.ndarray:
        """Return the classes of the public part alone, int64; -1 where they are hidden.

        Raises:
            DataError: See ``read``.
        """
        labels = self._labels()
        return self._renumbered(labels[self._parts(labels)["public"]])

    def read(self) -> dict[str, Arrays]:
        """Return the parts ``public`` and perhaps ``validation``, in the study's shape and classes.

        Raises:
            DataError: The file cannot be read, or a class has fewer records than ``per_class``.
        """
        inputs, labels = self.source.read()["train"]
        labels, shape, parts = self._named(labels), self.own.input_shape, {}
        for part, rows in self._parts(labels).items():
            chosen = np.asarray(inputs[rows])
            chosen = chosen if chosen.shape[1:] == shape else stretched(chosen, shape)
            arrays = chosen, self._renumbered(labels[rows])
            parts[part] = (np.ascontiguousarray(arrays[0]), np.ascontiguousarray(arrays[1]))
        return parts

    @property
    def _has_all_classes(self) -> bool:
        return self.spec.classes is None or self.spec.public.labels == "hidden"

    def _named(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels of the file as the study numbers its classes."""
        return labels if self.numbers is None else self.numbers[labels]

    def _labels(self) -> np.ndarray:
        read = self.source.read_labels
        return self._named(self.source.read()["train"][1] if read is None else read("train"))

    def _renumbered(self, labels: np.ndarray) -> np.ndarray:
        """Return labels of the task's classes as the task numbers them."""
        if self._has_all_classes or self.spec.classes is None:
            return labels
        return only((labels, labels), self.spec.classes)[1]

    def _rows(self, labels: np.ndarray) -> np.ndarray:
        """Return the rows of the task's classes."""
        if self._has_all_classes:
            return np.arange(len(labels))
        return np.flatnonzero(np.isin(labels, np.array(self.spec.classes)))

    def _parts(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows of each part, of labels as the study numbers them."""
        public, own = self.spec.public, self.own
        rows = self._rows(labels)
        rows = rows[np.random.default_rng(FILE_SEED).permutation(len(rows))]
        held = round(public.validation * len(rows))
        used = rows[held:]
        if public.per_class is not None:
            classes = self.spec.classes or range(own.num_classes)
            used = first_of_each(used, labels, public.per_class, classes, own.class_names)
        parts = {"public": np.sort(used[: public.max_records])}
        return {**parts, "validation": np.sort(rows[:held])} if public.validation else parts


def open_public_file(spec: DataSpec, own: Source) -> PublicFile | None:
    """Return the records of ``data.public.path`` or ``dataset``; None where it names neither.

    Args:
        spec: The study's ``data`` section.
        own: Source of the study's own records, with ``data.classes`` applied.
    Raises:
        DataError: The file is missing, or not as it must be beside the study's own records.
    """
    public = spec.public
    if not public.is_of_file:
        return None
    raw = _raw_source(spec, own)
    is_hidden = public.labels == "hidden"
    source = _opened(_section(public, spec, raw), is_hidden=is_hidden)
    _check_shape(source, own, public)
    numbers = None if is_hidden else _class_numbers(source, raw, spec)
    if source.num_found is None and public.num_records is None and source.num_records == 1:
        raise DataError(
            f"{about_file(public, spec)} is counted only as it is read",
            fix="declare data.public.num_records, its number of records",
        )
    file = PublicFile(spec, own, source, numbers)
    if file.num_public < 1 or (public.validation and file.num_validation < 1):
        raise DataError(
            f"{file.about} has {counted(file.num_records, 'record')}, which are too few",
            fix="give more records, or another data.public.validation",
        )
    return file


@dataclass(frozen=True)
class PollutionFile:
    """The records of another file that are mixed into public ones.

    Attributes:
        num_records: How many there are; reading may find others of a package's dataset.
        read: Returns (images, float32 (records, *shape of the study's); classes, int64, -1 where
            there are none).
    """

    num_records: int
    read: Callable[[], Arrays]


def open_pollution(spec: DataSpec, own: Source) -> PollutionFile | None:
    """Return the records of ``data.public.pollution.path`` or ``dataset``, if it names one.

    Their classes are counted in the file, which is declared public.

    Raises:
        DataError: The file is missing, or holds no images.
    """
    pollution = spec.public.pollution
    if pollution is None or not pollution.is_of_file:
        return None
    section = _section(pollution, spec, own)
    is_labelled = section.dataset != "image_folder"
    if section.dataset == "npz":
        num_labels = _num_labels(Path(str(section.path)).expanduser())
        is_labelled = num_labels > 0
        section = section.model_copy(update={"num_classes": max(num_labels, 2)})
    source = _opened(section, is_hidden=not is_labelled)
    if not is_stretchable(source.input_shape, own.input_shape):
        theirs, ours = _shown(source.input_shape), _shown(own.input_shape)
        raise DataError(
            f"its records are {theirs}, those of the study {ours}", fix="give a file of images"
        )

    def read() -> Arrays:
        inputs, labels = source.read()["train"]
        return stretched(np.asarray(inputs), own.input_shape), labels

    size = source.num_found
    return PollutionFile(source.num_records if size is None else size, read)


def _num_labels(path: Path) -> int:
    """Return how many classes the labels of an .npz file name; 0 where there are no such labels."""
    if not path.is_file() or "y_train" not in npz_headers(path):
        return 0
    with np.load(path, allow_pickle=False) as file:
        labels = npz_array(file, "y_train", path)
    is_class = labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min(initial=0) >= 0
    return int(labels.max(initial=0)) + 1 if is_class else 0


def _raw_source(spec: DataSpec, own: Source) -> Source:
    """Return the study's source with all its classes, named as its files name them."""
    if spec.classes is None and spec.class_names is None:
        return own
    names = spec.class_names if spec.has_named_labels else None
    return open_source(spec.model_copy(update={"classes": None, "class_names": names}))


def _section(other: PublicSpec | Pollution, spec: DataSpec, own: Source) -> DataSpec:
    """Return another file as a data section, to be opened; its records are counted."""
    kind = kind_beside(other, spec)
    named: dict[str, Any] = {"dataset": kind, "path": other.path, "task": spec.task}
    if kind not in BUILT_IN:
        # The real number is public, and counted where it can be.
        named["num_records"] = getattr(other, "num_records", None) or 1
    if kind == "text":
        named |= {key: getattr(spec, key) for key in _TEXT_KEYS}
    if kind in ("npz", "text") and spec.task != "causal_lm":
        named["num_classes"] = own.num_classes
        if kind == "text" and spec.has_named_labels:
            named |= {"num_classes": None, "class_names": own.class_names}
    if kind == "image_folder" and len(own.input_shape) == 3:
        channels, *size = own.input_shape
        named |= {"channels": channels if channels in (1, 3) else 3, "image_size": size}
    elif kind == "image_folder":
        raise DataError(
            f"image_folder has images, and records of the study are {_shown(own.input_shape)}",
            fix="give records of the same kind",
        )
    return DataSpec(validation=ValidationSpec(visibility="public"), **named)


def _opened(section: DataSpec, *, is_hidden: bool) -> Source:
    """Return the source of another file, of which only the training records are used."""
    path = Path(str(section.path)).expanduser()
    if section.dataset == "npz" and not is_hidden and path.is_file():
        headers = npz_headers(path)
        if "x_train" in headers and "y_train" not in headers:
            raise DataError(
                f"{path.name} has no y_train",
                fix="store labels, or set data.public.labels: hidden if there are none",
            )
    if is_hidden and section.dataset == "npz":
        source = open_npz(section, has_labels=False)
    elif is_hidden and section.dataset == "image_folder":
        source = open_photos(section)
    else:
        source = open_source(section)
    if not is_hidden:
        return source

    def read() -> dict[str, Arrays]:
        inputs, labels = source.read()["train"]
        return {"train": (inputs, np.full(len(labels), -1, np.int64))}

    return replace(source, read=read, read_labels=None, read_kept=None)


def _check_shape(source: Source, own: Source, public: PublicSpec) -> None:
    if source.input_shape == own.input_shape:
        return
    theirs, ours = _shown(source.input_shape), _shown(own.input_shape)
    can = is_stretchable(source.input_shape, own.input_shape)
    if not can or not public.resize:
        raise DataError(
            f"its records are {theirs}, those of the study {ours}",
            fix="set data.public.resize: true, which stretches them"
            if can
            else "give records of the same kind",
        )


def _class_numbers(source: Source, raw: Source, spec: DataSpec) -> np.ndarray | None:
    """Return the study's number of each class of a file; None where numbers are the same.

    Raises:
        DataError: A folder has the name of no class of the study.
    """
    if kind_beside(spec.public, spec) != "image_folder":
        if spec.task == "classification" and source.num_classes > raw.num_classes:
            raise DataError(
                f"it has {source.num_classes} classes, those of the study are {raw.num_classes}",
                fix="give records of the study's classes",
            )
        return None
    unknown: list[str] = []
    for names in (spec.class_names, raw.class_names):
        numbers = {name: number for number, name in enumerate(names or ())}
        unknown = [name for name in source.class_names if name not in numbers]
        if not unknown:
            return np.array([numbers[name] for name in source.class_names], np.int64)
    classes = spec.class_names or raw.class_names
    raise DataError(
        f"its folder {unknown[0]!r} is no class of the study: {_few(classes)}",
        fix="name its folders as the classes, or the classes of the study by data.class_names",
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _shown(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))

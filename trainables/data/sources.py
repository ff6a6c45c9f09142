"""Where records come from: archives of known datasets, npz files, images, text, and packages.

A source says its public facts (shape, classes, declared number of records) without opening a
private record, and reads the arrays when asked. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import BadInputError, DataError, SweepError, described
from dpsweep.foundation.registry import Registry
from dpsweep.foundation.words import counted
from dpsweep.spec.data.datasets import DATASET_GROUP
from dpsweep.trainables.data.source import Arrays, KeptRead, Source

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

_DATA = "dpsweep.trainables.data"

#: Dataset name -> ``open(spec.data) -> Source``. It reads no private record; of the section's keys
#: it takes what it needs, and refuses what it cannot work with (``DataError``).
DATASETS = Registry(
    "dataset",
    {
        "celeba": f"{_DATA}.vision.celeba:open_celeba",
        "cifar10": f"{_DATA}.vision.cifar:open_cifar10",
        "cifar100": f"{_DATA}.vision.cifar:open_cifar100",
        "digits": f"{_DATA}.built_in:open_digits",
        "fashion_mnist": f"{_DATA}.built_in:open_fashion_mnist",
        "image_dataset": f"{_DATA}.vision.image_dataset:open_image_dataset",
        "image_folder": f"{_DATA}.images:open_image_folder",
        "mnist": f"{_DATA}.built_in:open_mnist",
        "npz": f"{_DATA}.npz:open_npz",
        "svhn": f"{_DATA}.vision.svhn:open_svhn",
        "text": f"{_DATA}.text.opening:open_text",
    },
    group=DATASET_GROUP,
)


def open_source(spec: DataSpec) -> Source:
    """Return the source that a spec's ``data`` section names; reads headers and names only.

    Raises:
        DataError: It is missing, incomplete or not as declared.
    """
    try:
        opener = DATASETS[spec.dataset]
    except BadInputError as error:
        raise DataError(error.message, because=error.because, fix=error.fix) from error
    try:
        source = _opened(opener, spec)
    except DataError as error:
        if spec.path is None or spec.path not in error.message:
            raise
        path = Path(spec.path).expanduser()
        if path.is_absolute() or path.exists() or spec.dataset in DATASETS.outside():
            raise
        words = (error.fix, "or type this in the folder that this path starts from")
        fix = "; ".join(filter(None, words))
        raise DataError(error.message, because=error.because, fix=fix) from error
    if spec.dataset in DATASETS.outside():
        source = _checked(source, spec)
    if spec.class_names is None:
        return source
    if len(spec.class_names) != source.num_classes:
        raise DataError(
            f"data.class_names has {len(spec.class_names)} names, and {spec.dataset} has "
            f"{counted(source.num_classes, 'class')}",
            fix="give one name for each, in the order of their numbers",
        )
    return replace(source, class_names=spec.class_names)


def _opened(opener: Callable[[DataSpec], Source], spec: DataSpec) -> Source:
    """Return what an opener returns; of another package's, any error is told in a line.

    Openers read no private record, so their words hold none.
    """
    try:
        return opener(spec)
    except SweepError:
        raise
    except Exception as error:
        if spec.dataset not in DATASETS.outside():
            raise
        raise DataError(
            f"dataset {spec.dataset}, which another package brings, cannot be opened: "
            f"{described(error)}",
            fix="correct its opener, which is to raise DataError where it refuses",
        ) from error


def _checked(source: Source, spec: DataSpec) -> Source:
    """Return the source of another package, which keeps to what it says or raises a DataError."""
    name = spec.dataset
    if not isinstance(source, Source):
        raise DataError(
            f"dataset {name}, which another package brings, has opened as {type(source).__name__}, "
            "not as a Source",
            fix="correct its opener, which is to return a dpsweep Source",
        )
    if spec.task not in source.tasks:
        raise DataError(
            f"dataset {name} has no labels for data.task: {spec.task}",
            fix=f"use task: {' or '.join(sorted(source.tasks))}",
        )
    if len(source.class_names) != source.num_classes and spec.task != "causal_lm":
        raise DataError(
            f"dataset {name} names {len(source.class_names)} of {source.num_classes} classes",
            fix="its authors should give one name for each",
        )

    def read() -> dict[str, Arrays]:
        return checked(source.read())

    def checked(parts: dict[str, Arrays]) -> dict[str, Arrays]:
        check_arrays(source, parts, name, spec.task)
        return parts

    kept = source.read_kept
    if isinstance(kept, KeptRead):  # a built-in dataset's, whose reader is the one it goes with
        return replace(source, read=read, read_kept=replace(kept, goes_with=read))
    read_kept = None if kept is None else lambda keep: checked(kept(keep))
    return replace(source, read=read, read_kept=read_kept)


def check_arrays(source: Source, parts: Mapping[str, Arrays], name: str, task: str) -> None:
    """Refuse records that are not as the source says; which ones stays unsaid, as they are private.

    Raises:
        DataError: A part is missing or too many, or has other shapes, types or labels.
    """
    own = {"validation": source.own_validation, "test": source.own_test}
    expected = {"train", *(part for part, size in own.items() if size is not None)}
    if set(parts) != expected:
        raise DataError(
            f"dataset {name} has the parts {', '.join(sorted(parts))}, and said "
            f"{', '.join(sorted(expected))}"
        )
    for part, (inputs, labels) in parts.items():
        types = (np.dtype(np.float32 if source.text is None else np.int64), _label_type(task))
        if (inputs.dtype, labels.dtype) != types:
            raise DataError(
                f"dataset {name}: {part} has inputs of {inputs.dtype} and labels of "
                f"{labels.dtype}, not {types[0]} and {types[1]}"
            )
        if inputs.shape[1:] != source.input_shape:
            raise DataError(
                f"dataset {name}: records of {part} have shape {inputs.shape[1:]}, and it said "
                f"{source.input_shape}"
            )
        if len(inputs) != len(labels):
            raise DataError(f"dataset {name}: inputs and labels of {part} differ in number")
        if not np.isfinite(inputs).all():
            raise DataError(f"dataset {name}: {part} has values that are no numbers")
        if part in own and own[part] != len(labels):
            raise DataError(f"dataset {name}: {part} has another size than it said")
        high = 2 if task == "multi_label" else source.num_classes
        if task != "causal_lm" and len(labels) and not (0 <= labels.min() <= labels.max() < high):
            raise DataError(f"dataset {name}: {part} has labels outside 0..{high - 1}")


def _label_type(task: str) -> np.dtype:
    return np.dtype(np.float32 if task == "multi_label" else np.int64)

"""Where records come from: archives of known datasets, npz files, images, text, and packages.

A source says its public facts (shape, classes, declared number of records) without opening a
private record, and reads the arrays when asked. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import (
    BadInputError,
    DataError,
    SweepError,
    described,
    is_failure,
    is_own,
)
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
    except BaseException as error:
        if not is_failure(error) or spec.dataset not in DATASETS.outside():
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
    source = replace(source, **_facts(source, name))
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

    def checked(call: Callable[..., dict[str, Arrays]], *arguments: Any) -> dict[str, Arrays]:
        parts = _read(call, name, *arguments)
        check_arrays(source, parts, name, spec.task)
        return parts

    def read() -> dict[str, Arrays]:
        return checked(source.read)

    kept, labels_of = source.read_kept, source.read_labels
    read_labels = None if labels_of is None else lambda part: _read(labels_of, name, part)
    read_kept = None if kept is None else lambda keep: checked(kept, keep)
    if isinstance(kept, KeptRead) and _place(kept.call).startswith(f"{_DATA}."):
        read_kept = replace(kept, goes_with=read)  # a built-in dataset's
    return replace(source, read=read, read_kept=read_kept, read_labels=read_labels)


def _place(call: Callable[..., Any]) -> str:
    """Return the module of a function, or ""."""
    return str(getattr(call, "__module__", ""))


def _read(call: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Return what a reader of another package returns.

    Its errors may quote records. So their words are left out, and they are not chained; those that
    dpsweep's own readers have raised are written to be shown.

    Raises:
        DataError: It fails.
        SweepError: A reader of dpsweep's own fails, which it calls.
    """
    try:
        return call(*arguments)
    except BaseException as error:
        if is_own(error) or not is_failure(error):
            raise error from None
        raise DataError(
            f"dataset {name}, which another package brings, cannot be read",
            because=described(error),
            fix="correct its reader; words of its error may hold a record: to see them, open it by "
            "hand",
        ) from None


def _facts(source: Source, name: str) -> dict[str, Any]:
    """Return the facts of another package's source in the types that they are declared with.

    Sizes of arrays are often numbers of NumPy's; those become Python's.

    Raises:
        DataError: One has another type.
    """
    whole, words = "a whole number", "words"
    facts: dict[str, Any] = {}

    def fact(key: str, kind: str, made: Callable[[Any], Any]) -> None:
        value = getattr(source, key)
        try:
            facts[key] = made(value)
        except (TypeError, ValueError):
            raise DataError(
                f"dataset {name}: {key} of its Source is {type(value).__name__}, not {kind}",
                fix="its authors should give it as `Source` declares it",
            ) from None

    def several(values: Any) -> tuple[str, ...]:
        if isinstance(values, str) or not all(isinstance(each, str) for each in values):
            raise TypeError
        return tuple(map(str, values))

    fact("input_shape", "several whole numbers", lambda sides: tuple(map(index, sides)))
    for key in ("num_classes", "num_records"):
        fact(key, whole, index)
    for key in ("own_validation", "own_test", "num_found"):
        fact(key, f"{whole} or None", lambda size: None if size is None else index(size))
    for key in ("class_names", "notes"):
        fact(key, f"several {words}", several)
    fact("tasks", f"a set of {words}", lambda tasks: frozenset(several(tasks)))
    return facts


def check_arrays(source: Source, parts: Mapping[str, Arrays], name: str, task: str) -> None:
    """Refuse records that are not as the source says; which ones stays unsaid, as they are private.

    Raises:
        DataError: A part is missing or too many, or has other shapes, types or labels.
    """
    own = {"validation": source.own_validation, "test": source.own_test}
    expected = {"train", *(part for part, size in own.items() if size is not None)}
    if not isinstance(parts, Mapping):
        raise DataError(f"dataset {name}: `read` has returned {type(parts).__name__}, not a dict")
    if set(parts) != expected:
        named = sorted({"train", *own} & set(parts))  # any other name may be a record's
        if len(named) < len(parts):
            named.append(f"{len(parts) - len(named)} by other names")
        raise DataError(
            f"dataset {name} has the parts {', '.join(named) or 'none'}, and said "
            f"{', '.join(sorted(expected))}"
        )
    for part, arrays in parts.items():
        if not isinstance(arrays, (tuple, list)) or len(arrays) != 2:
            raise DataError(f"dataset {name}: {part} is not a pair of inputs and labels")
        inputs, labels = arrays
        for role, array in (("inputs", inputs), ("labels", labels)):
            if not (isinstance(getattr(array, "dtype", None), np.dtype) and array.shape):
                kind = type(array).__name__
                raise DataError(f"dataset {name}: {role} of {part} are {kind}, not an array")
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
        if task == "classification" and labels.ndim != 1:
            raise DataError(f"dataset {name}: labels of {part} have {labels.ndim} axes, not one")
        if not np.isfinite(inputs).all():
            raise DataError(f"dataset {name}: {part} has values that are no numbers")
        if part in own and own[part] != len(labels):
            raise DataError(f"dataset {name}: {part} has another size than it said")
        high = 2 if task == "multi_label" else source.num_classes
        if task != "causal_lm" and len(labels) and not (0 <= labels.min() <= labels.max() < high):
            raise DataError(f"dataset {name}: {part} has labels outside 0..{high - 1}")


def _label_type(task: str) -> np.dtype:
    return np.dtype(np.float32 if task == "multi_label" else np.int64)

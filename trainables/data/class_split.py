"""Some classes of a dataset as a dataset of their own: the private task of a study.

``data.classes: [5, 6, 7, 8, 9]`` takes the records of these classes out of every part and numbers
the classes anew, in the order given. What is left out is read with the file and then dropped,
unless ``pretrain.classes`` declares it public.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.kept.pixels import taken
from dpsweep.trainables.data.raw.reading import reading
from dpsweep.trainables.data.source import Arrays, Source
from dpsweep.trainables.data.sources import open_source

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec
    from dpsweep.trainables.data.kept.keep import Keep

#: Published records per class, of the training and of the test part: digits (UCI optical
#: recognition, the part in scikit-learn), and those that were counted by their authors.
_DIGITS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
_PUBLISHED: Mapping[str, tuple[Sequence[int], Sequence[int]]] = {
    "digits": (_DIGITS, ()),
    "fashion_mnist": ((6_000,) * 10, (1_000,) * 10),
    "mnist": (
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    "cifar10": ((5_000,) * 10, (1_000,) * 10),
    "cifar100": ((500,) * 100, (100,) * 100),
    "svhn": (
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    ),
}


def open_classes(spec: DataSpec) -> Source:
    """Return the source of a spec's ``data`` section with the records of ``data.classes`` alone.

    Without ``data.classes`` that is the whole source. Sizes are published for the built-in datasets
    and declared for the others: ``data.num_records`` then counts the records of these classes. A
    validation or test part of its own is counted in its files as it always is: of ``image_folder``
    per folder, of the others in its labels if it is declared public, else as a whole, which is then
    an upper bound.

    Guarantees:
        The result holds the records of these classes and nothing computed from others. Which class
        a record has decides whether it is in the private data at all, so a neighboring data set is
        one in which the position of a record *of these classes* is emptied in place. That somebody
        has no record among them is not hidden by anything here, and a record of another class has
        no guarantee: training does not use it, and ``pretrain.classes`` may declare it public.

    Raises:
        DataError: See ``open_source``; or the dataset has no such class.
    """
    source = open_source(spec)
    if spec.classes is None:
        return source
    classes = spec.classes
    _check(classes, source, "data.classes")
    return dataclasses.replace(
        source,
        num_classes=len(classes),
        class_names=tuple(source.class_names[label] for label in classes),
        num_records=_published(spec.dataset, classes) or source.num_records,
        own_validation=_size_of_own(spec, source, "validation", source.own_validation),
        own_test=_size_of_own(spec, source, "test", source.own_test),
        read=lambda: {part: only(arrays, classes) for part, arrays in source.read().items()},
        read_kept=lambda keep: {
            part: only(arrays, classes) for part, arrays in source.records(keep).items()
        },
    )


def read_classes(spec: DataSpec, classes: Sequence[int], keep: Keep | None = None) -> Arrays:
    """Return the training records of other classes of the same dataset, numbered in their order.

    Args:
        spec: The ``data`` section of a spec.
        classes: Which ones.
        keep: Where decoded images are kept, see ``Source``.

    Guarantees:
        They are handed out as they are: whoever asks declares them public (``pretrain.classes``).

    Raises:
        DataError: See ``open_source``; the dataset has no such class; or no record of one of them.
    """
    source = open_source(spec)
    _check(classes, source, "pretrain.classes")
    with reading(spec.dataset):  # all of them, the private ones of other classes, too
        return only(source.records(keep)["train"], classes)


def only(arrays: Arrays, classes: Sequence[int]) -> Arrays:
    """Return the records of some classes, in their order, with labels renumbered 0, 1, ...

    >>> inputs, labels = only((np.arange(4.0)[:, None], np.array([5, 1, 0, 5])), [5, 0])
    >>> inputs.ravel().tolist(), labels.tolist()
    ([0.0, 2.0, 3.0], [0, 1, 0])
    """
    inputs, labels = arrays
    matches = labels[:, None] == np.asarray(classes, np.int64)
    rows = matches.any(axis=1)
    return taken(inputs, rows), matches[rows].argmax(axis=1).astype(np.int64)


def _check(classes: Sequence[int], source: Source, key: str) -> None:
    unknown = [label for label in classes if label >= source.num_classes]
    if unknown:
        raise DataError(
            f"{key} has {unknown[0]}, but the dataset has the classes 0 to "
            f"{source.num_classes - 1}",
            fix="give class numbers of the dataset",
        )


def _published(dataset: str, classes: Sequence[int], *, is_test: bool = False) -> int | None:
    """Return the published number of records of some classes, or None."""
    if dataset not in _PUBLISHED:
        return None
    return sum(_PUBLISHED[dataset][is_test][label] for label in classes)


def _size_of_own(spec: DataSpec, source: Source, part: str, whole: int | None) -> int | None:
    """Return the number of these classes' records in a part of its own; None without one."""
    assert spec.classes is not None
    if whole is not None and spec.dataset in _PUBLISHED:
        return _published(spec.dataset, spec.classes, is_test=True)
    is_public = getattr(spec, part).visibility == "public"
    if whole is None or not is_public or source.read_labels is None:
        return whole
    return int(np.isin(source.read_labels(part), spec.classes).sum())

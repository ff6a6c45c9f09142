"""Rows of the training source that a spec declares public, by their positions or class by class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.words import counted

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

PER_CLASS = "data.public.per_class"


def declared_positions(spec: DataSpec, total: int) -> np.ndarray | None:
    """Return the rows of ``data.public.positions``, sorted, int64; None where it names none.

    Args:
        spec: The ``data`` section of a spec.
        total: Declared number of training records.
    Raises:
        DataError: The file cannot be read, or holds what is no row of that many records.
    """
    positions = spec.public.positions
    if positions is None:
        return None
    rows = np.array(positions, np.int64) if not isinstance(positions, str) else _read(positions)
    wrong = ""
    if not len(rows):
        wrong = "names no row"
    elif len(np.unique(rows)) < len(rows):
        wrong = "names a row twice"
    elif rows.min() < 0 or rows.max() >= total:
        wrong = f"names row {rows.max() if rows.max() >= total else rows.min()}, and the declared "
        wrong += f"{counted(total, 'record')} are numbered from 0"
    if wrong:
        raise DataError(f"data.public.positions {wrong}", fix="name rows below data.num_records")
    return np.sort(rows)


def positions_digest(spec: DataSpec) -> str | None:
    """Return the SHA-256 of the rows of ``data.public.positions``; None where it names none.

    Raises:
        DataError: The file cannot be read.
    """
    positions = spec.public.positions
    if positions is None:
        return None
    rows = _read(positions) if isinstance(positions, str) else np.array(positions, np.int64)
    return hashlib.sha256(np.sort(rows).astype("<i8").tobytes()).hexdigest()


def _read(name: str) -> np.ndarray:
    path = Path(name).expanduser()
    try:
        if path.suffix == ".npy":
            rows = np.load(path, allow_pickle=False)
        else:
            rows = np.array([int(line) for line in path.read_text().split()], np.int64)
    except (OSError, ValueError, UnicodeDecodeError) as error:
        raise DataError(
            f"data.public.positions: {name} cannot be read as rows: {error}",
            fix="give one row a line, or an array of whole numbers saved with numpy.save",
        ) from None
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise DataError(
            f"data.public.positions: {name} is no list of whole numbers",
            fix="save an array of shape (rows,) and an integer type",
        )
    return rows.astype(np.int64)


def first_of_each(
    rows: np.ndarray,
    labels: np.ndarray,
    per_class: int,
    classes: Sequence[int],
    class_names: Sequence[str],
) -> np.ndarray:
    """Return the first ``per_class`` rows of each class, in the order in which they come.

    Guarantees:
        Let the rows that come back be public and the others private. A row that does not come back
        has ``per_class`` rows of its class before it, which come back; without it they still are
        the first ones, and those of other classes are not touched. So taking a private row away
        changes nothing about which rows are public, and by symmetry neither does adding one that is
        private afterwards: the choice tells a neighbor nothing, and costs nothing. A row that comes
        back has no protection. The error is about a class of which every row is public.

    >>> labels = np.array([0, 0, 1, 0, 1])
    >>> first_of_each(np.array([4, 3, 2, 1, 0]), labels, 1, (0, 1), ("cat", "dog")).tolist()
    [4, 3]

    Args:
        rows: int64, in an order that no record has an influence on.
        labels: Class of every row, int64.
        per_class: At least 1.
        classes: Those that are wanted.
        class_names: One name for each of these.
    Raises:
        DataError: There are fewer of some class.
    """
    chosen = []
    for label, name in zip(classes, class_names):
        places = np.flatnonzero(labels[rows] == label)[:per_class]
        if len(places) < per_class:
            raise DataError(
                f"class {name!r} has {counted(len(places), 'record')} that can be public, fewer "
                f"than {PER_CLASS}={per_class}",
                fix=f"lower {PER_CLASS}, or give more records of the class",
            )
        chosen.append(places)
    picked: np.ndarray = rows[np.sort(np.concatenate(chosen))]
    return picked

"""Images with their classes in a table beside them: ``labels.csv`` with the columns file and label.

Names of files stay unsaid in errors, as they tell which records there are.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from dpsweep.foundation.errors import DataError

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

LABELS = "labels.csv"
_COLUMNS = ("file", "label")


def classes_of_table(spec: DataSpec) -> tuple[str, ...]:
    """Return the declared labels of a table, in the order of their numbers.

    Raises:
        DataError: None are declared.
    """
    if spec.class_names is not None:
        return spec.class_names
    if spec.num_classes is not None:
        return tuple(str(label) for label in range(spec.num_classes))
    raise DataError(
        f"the classes of {LABELS} are not declared",
        because="its labels are private, and which ones occur there tells of them",
        fix="set data.class_names to the labels as they are written there; or data.num_classes, "
        "if they are numbers from 0",
    )


def labelled_images(
    folder: Path, images: list[Path], classes: tuple[str, ...]
) -> list[tuple[Path, int]]:
    """Return (path, class number) of every image of a folder, in the order of their paths.

    Args:
        folder: Where ``labels.csv`` is; its column file has paths below it, with ``/``.
        images: All images below the folder.
        classes: What its column label can hold.
    Raises:
        DataError: The table is no such table, lacks an image, or has one that is not there.
    """
    table = folder / LABELS
    labels = _rows(table, {name: number for number, name in enumerate(classes)})
    there = {path.relative_to(folder).as_posix(): path for path in images}
    if there.keys() - labels.keys():
        raise DataError(
            f"{folder} has images that {LABELS} does not name",
            fix=f"give each image a line FILE,LABEL in {table}, or move it elsewhere",
        )
    if labels.keys() - there.keys():
        raise DataError(
            f"{table} names files that are no images of {folder}",
            fix="remove their lines, or put the images there; a file is named by its path below "
            "that folder, as in DAY1/CAT.JPG",
        )
    return [(there[name], labels[name]) for name in sorted(there)]


def _rows(table: Path, number_of: dict[str, int]) -> dict[str, int]:
    labels: dict[str, int] = {}
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{table} has no column {' and no column '.join(missing)}",
                    fix="begin it with the line file,label",
                )
            twice = [name for name in _COLUMNS if (reader.fieldnames or []).count(name) > 1]
            if twice:
                raise DataError(f"{table} has the column {twice[0]} twice", fix="keep one of them")
            for row in reader:
                if None in row:
                    raise DataError(
                        f"{table} has a line with more fields than its first one",
                        fix="put names that hold a comma in double quotes",
                    )
                name, label = ((row[column] or "").strip() for column in _COLUMNS)
                if label not in number_of:
                    raise DataError(
                        f"{table} has a label that is none of the declared classes",
                        because="a line has no label" if not label else "",
                        fix="correct data.class_names (or data.num_classes), or the table",
                    )
                if name in labels:
                    raise DataError(f"{table} names a file twice", fix="give it one label")
                labels[name] = number_of[label]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {table}: {type(error).__name__}", fix="store it as csv in UTF-8"
        ) from None
    return labels

"""Tables of texts: csv, jsonl, directories of them, and of Hugging Face ``datasets``.

A table tells the names of its columns without a record being read, where its file can. Texts and
labels are read when asked.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.data.raw.saved import saved_splits

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

#: Our names of the parts -> those of Hugging Face datasets, of files and of arrays in npz.
PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
#: Label of a record without one, in the datasets of Hugging Face.
NO_LABEL = -1
_LABEL = "label"
_SUFFIXES = (".csv", ".jsonl")
#: Of a directory of ``save_to_disk``.
_OF_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True)
class Wanted:
    """The columns that a record is made of.

    Attributes:
        texts: Key of the spec -> name of the column, for each text of a record, in their order.
        label: Name of the column of labels; None where there are none.
    """

    texts: Mapping[str, str]
    label: str | None

    @classmethod
    def of(cls, spec: DataSpec) -> Wanted:
        """Return what a spec's ``data`` section names."""
        if spec.prompt_column is not None:
            keys = ("prompt_column", "target_column")
        else:
            keys = ("text_column", "text_pair_column")
        columns = {key: getattr(spec, key) for key in keys}
        if columns.get("text_column", "") is None:
            columns["text_column"] = "text"
        texts = {key: name for key, name in columns.items() if name is not None}
        is_lm = spec.task == "causal_lm"
        return cls(texts, None if is_lm else spec.label_column or _LABEL)

    @property
    def names(self) -> list[str]:
        """All columns that are read, labels last."""
        return [*self.texts.values(), *([] if self.label is None else [self.label])]

    def check(self, table: Table, *, has_labels: bool = True) -> None:
        """Check the names of columns; those of a file are shown only if they cannot be a record.

        Raises:
            DataError: One of them is not there.
        """
        wanted = [*self.texts.items()]
        if has_labels and self.label is not None:
            wanted.append(("label_column", self.label))
        for key, name in wanted:
            if table.columns is None or name in table.columns:
                continue
            hint = _header_hint(name, table.columns)
            if table.are_names:
                near = did_you_mean(name, list(table.columns))
                hint = near or f"there are: {', '.join(table.columns[:10])}"
            raise DataError(f"{table.where} has no column {name!r}", fix=f"set data.{key}; {hint}")


def _header_hint(name: str, header: Sequence[str]) -> str:
    """Return what may be wrong with the first line of a csv file, which may be a record."""
    if not any(header):
        return "its first line is empty, and must name its columns"
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        return "its fields are to be parted by commas"
    if name.casefold() in (column.strip().casefold() for column in header):
        return "one differs in capitals or spaces alone"
    return "the first line of a csv file must name its columns"


@dataclass(frozen=True)
class Table:
    """The texts of one split.

    Attributes:
        where: What it is called in errors.
        columns: Names of its columns; None where only records tell them.
        are_names: Whether these are names for sure, and never a record.
        count: Returns its number of records.
        read: From names of columns to their values, column by column.
    """

    where: str
    columns: Sequence[str] | None
    are_names: bool
    count: Callable[[], int]
    read: Callable[[Sequence[str]], list[Sequence[Any]]]

    def has_labels(self, label: str) -> bool:
        """Say whether some record has a label: a column is there, with another value than -1."""
        if self.columns is not None and label not in self.columns:
            return False
        try:
            (labels,) = self.read([label])
        except DataError:
            return True  # damaged, or no such key: said when it is read as a whole
        return not all(str(value) in (str(NO_LABEL), "") for value in labels)


def open_tables(path: Path) -> tuple[dict[str, Table], bool]:
    """Return the splits at a path by their names, and whether their sizes are written down.

    Raises:
        DataError: It holds no texts, or the package ``datasets`` is missing.
    """
    if path.suffix in _SUFFIXES and not path.is_dir():
        return {"train": _file(path, path.name)}, False
    if not path.is_dir():
        raise DataError(
            f"{path.name} is no kind of text that is known",
            fix="give a .csv, .jsonl or .npz file, or a directory of datasets.save_to_disk",
        )
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    if files and not any((path / name).exists() for name in _OF_SAVED):
        names = [file.stem for file in files]
        for file in files:
            if names.count(file.stem) > 1:
                raise DataError(
                    f"{path} has {file.stem}.csv and {file.stem}.jsonl",
                    fix="keep one file for each split",
                )
        return {file.stem: _file(file, f"{path.name}/{file.name}") for file in files}, False
    return _saved(path), True


def choose_parts(
    tables: Mapping[str, Table], named: Mapping[str, str | None], path: Path
) -> dict[str, str]:
    """Return which split is which part, by the names that are given, else by usual ones.

    >>> choose_parts(dict.fromkeys(("train", "val", "test")), {"test": "val"}, Path("d"))
    {'train': 'train', 'test': 'val'}

    Args:
        tables: The splits that are there.
        named: Part -> name of a split, or None.
        path: Where they are.
    Raises:
        DataError: One of them is not there.
    """
    there = f"there are: {', '.join(list(tables)[:20])}"
    chosen = {}
    for part, usual in PARTS.items():
        name = named.get(part)
        if name is None:
            taken = {other for other in named.values() if other is not None}
            names = [key for key in usual if key in tables and key not in taken]
            if names:
                chosen[part] = names[-1]  # of "validation" and "val" the latter
        elif name in tables:
            chosen[part] = name
        else:
            hint = did_you_mean(name, list(tables)) or there
            raise DataError(f"{path} has no split {name!r}", fix=f"set data.splits.{part}; {hint}")
    if "train" not in chosen:
        raise DataError(f"{path} has no split train", fix=f"name one: data.splits.train; {there}")
    return chosen


def csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a csv file in UTF-8, by the names in its first line.

    Fields that a short row lacks are None; one of nothing but spaces is no row.

    Raises:
        DataError: A row has more fields than that line; which one is private.
    """
    csv.field_size_limit(_LONGEST)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            if None in row:
                raise DataError(
                    f"{path} has a row with more fields than its first line", fix=_QUOTE
                )
            if None in row.values() and not any((value or "").strip() for value in row.values()):
                continue
            yield row


class LineError(ValueError):
    """A line of a file is no JSON object; which one stays unsaid, as it may be private."""

    def __init__(self) -> None:
        super().__init__("a line is no JSON object")


#: How to mend a ``LineError``.
ONE_A_LINE = "write one JSON object a line"


def json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file in UTF-8 with one in each line.

    Raises:
        LineError: A line is something else.
    """
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise LineError from None
            if not isinstance(row, dict):
                raise LineError
            yield row


def _file(path: Path, where: str) -> Table:
    """Return the table of a ``.csv`` or ``.jsonl`` file."""
    is_csv = path.suffix == ".csv"
    rows = csv_rows if is_csv else json_rows

    def read(names: Sequence[str]) -> list[Sequence[Any]]:
        values: list[list[Any]] = [[] for _ in names]
        try:
            for row in rows(path):
                for column, name in zip(values, names):
                    if is_csv and row[name] is None:
                        raise DataError(
                            f"{where} has a row with fewer fields than its first line", fix=_QUOTE
                        )
                    column.append(row[name])
        except _DAMAGES as error:
            needed = " and ".join(map(repr, names))
            raise _damage(where, error, fix=f"every record needs {needed}") from None
        return list(values)

    def count() -> int:
        try:
            return sum(1 for _ in rows(path))
        except _DAMAGES as error:
            raise _damage(where, error, fix="write the file anew") from None

    return Table(where, _csv_columns(path) if is_csv else None, False, count, read)


def _damage(where: str, error: Exception, *, fix: str) -> DataError:
    """Return what to say of a file that cannot be read; an error's message may hold a record."""
    if isinstance(error, UnicodeDecodeError):
        return DataError(f"{where} is not UTF-8", fix="save it as UTF-8")
    if isinstance(error, LineError):
        return DataError(f"cannot read {where}: {error}", fix=ONE_A_LINE)
    return DataError(f"cannot read {where}: {type(error).__name__}", fix=fix)


_QUOTE = (
    "put texts that hold a comma, a quote or the end of a line in double quotes, with two for each "
    "one within, as csv writers do"
)
#: Characters of one text; Python's own limit is 131072.
_LONGEST = 2**30
_DAMAGES = (OSError, ValueError, TypeError, KeyError, RecursionError, csv.Error)


def _csv_columns(path: Path) -> list[str]:
    """Return the names in the first line; nothing is said of what comes after it."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            names = next(csv.reader(file), [])
        "".join(names).encode()  # fails where it was no UTF-8
    except (OSError, UnicodeEncodeError) as error:
        raise DataError(
            f"{path} is not a csv file in UTF-8: {type(error).__name__}", fix="write it in UTF-8"
        ) from None
    except csv.Error:
        raise DataError(f"{path} has a first line that cannot be read", fix=_QUOTE) from None
    return names


def _saved(path: Path) -> dict[str, Table]:
    """Return the splits that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote."""
    splits = saved_splits(
        path,
        instead="store the texts as .csv or .jsonl",
        fix="give such a directory, one of .csv or .jsonl files, or a file",
    )
    return {name: _split(split, f"{path.name} ({name})") for name, split in splits.items()}


def _split(split: Any, where: str) -> Table:
    def read(names: Sequence[str]) -> list[Sequence[Any]]:
        try:
            return [list(split[name]) for name in names]
        except Exception as error:  # datasets and pyarrow raise their own kinds
            raise _damage(where, error, fix="save it anew by save_to_disk") from None

    return Table(where, split.column_names, True, lambda: len(split), read)

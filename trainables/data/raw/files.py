"""Files of raw records: what somebody hands to a model, read as the model's data were."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.images import IMAGE_SUFFIXES
from dpsweep.trainables.data.npz import DAMAGES, npz_array
from dpsweep.trainables.data.raw.preparation import (
    ArrayRecords,
    DeepImageError,
    ImageRecords,
    RecordError,
    TextRecords,
    refuse_deep,
)
from dpsweep.trainables.data.text.tables import ONE_A_LINE, LineError, csv_rows, json_rows

#: Names of the array of an .npz file that holds records; the first one that is there.
KEYS = ("inputs", "x", "x_test")
_TABLES = (".npz", ".npy")
#: Channels of pixels -> Pillow's name of them.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
#: How to mend what reading raises.
_FIXES: tuple[tuple[type[BaseException], str], ...] = (
    (LineError, ONE_A_LINE),
    (DeepImageError, "store the image anew, with 8 bits per channel"),
    (UnicodeDecodeError, "save it as UTF-8"),
    (MemoryError, "give fewer records at once, or write the file anew"),
)


def refuse_missing(paths: Sequence[Path]) -> None:
    """Refuse files that are not there.

    Raises:
        DataError: One is missing, or a directory.
    """
    for path in paths:
        if not path.is_file():
            wrong = "is a directory" if path.is_dir() else "is not there"
            raise DataError(f"{path} {wrong}", fix="name files of records")


def read_files(paths: Sequence[Path], facts: Mapping[str, Any]) -> tuple[list[str], Any]:
    """Return the records of files, and what to call each.

    Args:
        paths: Images, ``.npz`` or ``.npy``, or ``.csv``, ``.jsonl`` or ``.txt`` of texts, as the
            records are.
        facts: Of the model: ``kind`` and ``preparation`` (``preparation.save``).
    Returns:
        Names: a file, or ``FILE:ROW`` from 0 where it holds rows; and records, as the model's
        ``predict`` takes them.
    Raises:
        DataError: A file is missing, of another kind, or damaged.
    """
    refuse_missing(paths)
    read = _READERS[facts["kind"]]
    names: list[str] = []
    blocks = []
    for path in paths:
        try:
            block = read(path, facts["preparation"])
        except (*DAMAGES, csv.Error, MemoryError) as error:
            words = " ".join(str(error).split())[:200]
            fix = next(
                (fix for kind, fix in _FIXES if isinstance(error, kind)), "write the file anew"
            )
            raise DataError(f"{path} cannot be read", because=words, fix=fix) from error
        blocks.append(block)
        is_one = path.suffix.lower() in IMAGE_SUFFIXES
        names += [str(path)] if is_one else [f"{path}:{row}" for row in range(len(block))]
    if not names:
        listed = ", ".join(map(str, paths))
        raise DataError(f"no record is in {listed}", fix="name files that hold some")
    if facts["kind"] == ArrayRecords.kind:
        return names, np.concatenate(blocks)
    import pandas as pd

    records = [record for block in blocks for record in block]
    if facts["preparation"].get("pair_column") is not None:
        return names, pd.DataFrame(records, columns=["text", "text_pair"])
    return names, pd.DataFrame({facts["kind"]: records})


def _arrays(path: Path, facts: Mapping[str, Any]) -> np.ndarray:
    shape, kind = tuple(facts["raw_shape"]), np.dtype(facts["raw_dtype"])
    if path.suffix.lower() in IMAGE_SUFFIXES and kind == np.uint8:
        values = _pixels(path, _MODES.get(shape[2], "RGB") if len(shape) == 3 else "L")[None]
    else:
        values = _table(path, f"a record is an array of {kind} of shape {shape}")
    if values.shape[1:] != shape:
        raise DataError(
            f"{path} has records of shape {values.shape[1:]}, and the model takes {shape}",
            fix="store (records, ...) as the data of the study were",
        )
    is_mask = values.dtype == bool and (len(shape) > 1 or kind.kind in "iu")
    if is_mask or not np.can_cast(values.dtype, kind, "same_kind"):
        raise DataError(
            f"{path} has numbers of {values.dtype}, and the model takes {kind}",
            fix="store numbers of the kind that the study's data have",
        )
    if kind.kind in "iu" and values.size and not np.can_cast(values.dtype, kind):
        least, most = int(values.min()), int(values.max())
        if least < np.iinfo(kind).min or most > np.iinfo(kind).max:
            raise DataError(
                f"{path} has numbers from {least} to {most}, and the model takes {kind}",
                fix="scale them to the range that the study's data have",
            )
    with np.errstate(over="ignore"):  # the model refuses infinities
        return values.astype(kind)


def _pixels(path: Path, mode: str) -> np.ndarray:
    """Return the pixels of an image, uint8 (height, width) or (height, width, channels).

    Args:
        path: Of its file.
        mode: Pillow's name of what a palette, or one bit a pixel, is converted to.
    Raises:
        RecordError: It is damaged, or grey with more than 8 bits a pixel.
        DataError: It has other pixels, as CMYK.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            refuse_deep(image)
            if image.mode in ("1", "P"):
                if mode in ("L", "RGB"):  # which know no alpha: the colours of all pixels count
                    image.info.pop("transparency", None)
                return np.asarray(image.convert(mode))
            if image.mode in _MODES.values():
                return np.asarray(image)
    except RecordError:
        raise
    except Exception as error:  # each format of Pillow raises its own kinds
        raise RecordError(f"cannot read an image: {error}") from error
    raise DataError(
        f"{path} has pixels of mode {image.mode}", fix="store the image as grey or as RGB"
    )


def _images(path: Path, facts: Mapping[str, Any]) -> Sequence[Any]:
    if path.suffix in _TABLES:
        values = _table(path, "a record is an image")
        if values.ndim < 3 or values.dtype.kind not in "biuf":
            raise DataError(
                f"{path} has {values.dtype} of shape {values.shape}, and a record is an image",
                fix="store pixels, uint8 (records, height, width) or (records, height, width, "
                "channels)",
            )
        return list(values)
    ImageRecords(**facts).read(path)  # says which file is no image
    return [path.read_bytes()]


def _table(path: Path, record: str) -> np.ndarray:
    if path.suffix not in _TABLES:
        raise DataError(
            f"{path} is no kind of file for these records",
            because=record,
            fix="give an .npz or .npy file",
        )
    with path.open("rb") as opened:
        is_archive = zipfile.is_zipfile(opened)
        opened.seek(0)
        is_array = opened.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
    if not (is_archive if path.suffix == ".npz" else is_array):
        raise DataError(
            f"{path} is no {path.suffix} file, or damaged",
            fix=f"write it by numpy.{'savez' if path.suffix == '.npz' else 'save'}",
        )
    stored = np.load(path, allow_pickle=False)
    if path.suffix == ".npy":
        return stored
    with stored as file:
        key = next((key for key in KEYS if key in file), None)
        if key is None:
            raise DataError(
                f"{path} has no array {KEYS[0]}", fix=f"store one: numpy.savez(..., {KEYS[0]}=...)"
            )
        return npz_array(file, key, path)


def _texts(path: Path, facts: Mapping[str, Any]) -> Sequence[Any]:
    preparation = TextRecords(**facts)
    columns = [name for name in (preparation.column, preparation.pair_column) if name is not None]
    is_pair = len(columns) == 2
    if path.suffix == ".txt" and not is_pair:
        with path.open(encoding="utf-8-sig") as lines:  # splitlines parts at form feeds, too
            return [line.removesuffix("\n") for line in lines]
    readers = {".csv": csv_rows, ".jsonl": json_rows}
    if path.suffix not in readers:
        kinds = f".csv or .jsonl file with {' and '.join(columns)}"
        raise DataError(
            f"{path} is no kind of file for texts",
            fix=f"give a {kinds if is_pair else '.csv, .jsonl or .txt file'}",
        )
    records = []
    for number, row in enumerate(readers[path.suffix](path)):
        for column in columns:
            if column not in row:
                there = [repr(name) for name in row][:10]
                raise DataError(
                    f"{path} has no column {column!r} in row {number}",
                    fix=f"name the column {column!r}; it has {', '.join(there) or 'none'}",
                )
            if row[column] is None:
                raise DataError(
                    f"{path} has no text in column {column!r} of row {number}",
                    fix="write one, or take the row away",
                )
            if not isinstance(row[column], str):  # of .jsonl; data of a study are refused, too
                raise DataError(
                    f"{path} has a value that is no text in column {column!r} of row {number}",
                    fix="write it as a text, in double quotes",
                )
        texts = tuple(_unicode(row[column], path, number) for column in columns)
        records.append(texts if is_pair else texts[0])
    return records


def _unicode(text: str, path: Path, row: int) -> str:
    """Return a text; refuse half of a pair of surrogates, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{path} has a text that is not valid Unicode in row {row}", fix="clean the text"
        ) from None
    return text


_READERS: dict[str, Callable[[Path, Mapping[str, Any]], Any]] = {
    ArrayRecords.kind: _arrays,
    ImageRecords.kind: _images,
    TextRecords.kind: _texts,
}

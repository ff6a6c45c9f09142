"""Records of text: csv, jsonl, directories of Hugging Face ``datasets``, and token ids in npz.

Texts become token ids of one length, padded on the right with the tokenizer's pad id. As for all
sources, public facts (columns, sizes of own parts, the tokenizer) are had without a private
record; texts and labels are read when asked. Needs the extra ``text``, and no torch.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.trainables.data.npz import check_label_shape, npz_array, npz_headers, shown_shape
from dpsweep.trainables.data.raw.preparation import (
    ArrayRecords,
    Preparation,
    RecordError,
    TextRecords,
)
from dpsweep.trainables.data.source import (
    Arrays,
    Source,
    TextInfo,
    checked_labels,
    declared_size,
    path_of,
)
from dpsweep.trainables.data.tasks import IGNORED

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

#: Our names of the parts -> those of Hugging Face datasets and of npz files.
_PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
#: Name of the column of texts, where none is named.
_TEXT = "text"
#: Texts and class numbers of one part; no labels for causal_lm.
Columns = tuple[Sequence[Any], "Sequence[Any] | None"]


def open_text(spec: DataSpec) -> Source:
    """Return the source of ``dataset: text``: what ``data.path`` holds, by its name.

    ``.csv`` (with a header) and ``.jsonl`` hold ``text_column`` and ``label_column``; a directory
    was written by ``datasets``' ``save_to_disk``, and its splits validation and test are parts of
    their own; ``.npz`` holds token ids ``x_train`` (records, max_length), padded on the right, and
    ``y_train`` unless the task is causal_lm, and perhaps ``x_val``, ``y_val``, ``x_test``,
    ``y_test``.

    Raises:
        DataError: It is missing, incomplete or not as declared, or a package is not installed.
    """
    path = path_of(spec, "a .csv, .jsonl or .npz file, or a directory of datasets.save_to_disk")
    if not path.exists():
        raise DataError(f"no file or directory {path}", fix="correct data.path")
    for key in ("tokenizer", "max_length"):
        if getattr(spec, key) is None:
            raise DataError(f"data.{key} is missing for text")
    if spec.num_classes is None and spec.task != "causal_lm":
        raise DataError(
            "data.num_classes is missing for text",
            because="the labels are private, so the number of classes must be declared",
        )
    tokenizer = _load_tokenizer(str(spec.tokenizer))
    info = _text_info(tokenizer, str(spec.tokenizer))
    length = int(spec.max_length or 0)
    preparation: Preparation = ArrayRecords.as_read((length,), "int64")
    if path.suffix == ".npz":
        sizes, read_ids = _open_npz(spec, path)
    else:
        sizes, read_columns = _open_columns(spec, path)
        column = spec.text_column or _TEXT
        preparation = texts = TextRecords(length, info.pad_id, column, tokenizer)

        def read_ids() -> dict[str, tuple[np.ndarray, Any]]:
            return {
                part: (_tokenize(texts, records, part), labels)
                for part, (records, labels) in read_columns().items()
            }

    num_classes = info.vocabulary_size if spec.task == "causal_lm" else int(spec.num_classes or 0)

    def read() -> dict[str, Arrays]:
        return {
            part: _finished(spec.task, ids, labels, info, num_classes, part)
            for part, (ids, labels) in read_ids().items()
        }

    # A name for each of 50,000 tokens helps nobody.
    names = () if spec.task == "causal_lm" else tuple(str(label) for label in range(num_classes))
    return Source(
        (length,),
        num_classes,
        names,
        declared_size(spec),
        sizes.get("validation"),
        sizes.get("test"),
        read,
        text=info,
        num_found=sizes.get("train"),
        tasks=frozenset({spec.task}),  # the spec has checked that they can be
        preparation=preparation,
    )


def next_tokens(ids: np.ndarray, pad_id: int) -> np.ndarray:
    """Return the label of every position: the token after it, ``IGNORED`` for padding.

    >>> next_tokens(np.array([[5, 7, 6, 0, 0]]), pad_id=0).tolist()
    [[7, 6, -100, -100, -100]]

    Args:
        ids: Token ids (records, length), int64, padded on the right.
        pad_id: Id of padding.
    """
    labels = np.full_like(ids, IGNORED)
    labels[:, :-1] = np.where(ids[:, 1:] == pad_id, IGNORED, ids[:, 1:])
    return labels


def _finished(
    task: str, ids: np.ndarray, labels: Any, info: TextInfo, num_classes: int, part: str
) -> Arrays:
    """Return int64 ids and labels as the task wants them."""
    if len(ids) and (ids.min() < 0 or ids.max() >= info.vocabulary_size):
        # Which record it is stays unsaid: it is private.
        raise DataError(
            f"{part} has token ids outside 0..{info.vocabulary_size - 1}",
            fix="use the tokenizer that the ids were made with",
        )
    if task == "causal_lm":
        return ids, next_tokens(ids, info.pad_id)
    try:
        numbers = np.asarray(labels)
        if numbers.dtype.kind in "OSU":
            numbers = numbers.astype(np.int64)
        if task == "classification" and numbers.dtype.kind not in "iub":
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"the labels of {part} are not class numbers", fix="number the classes from 0"
        ) from None
    return ids, checked_labels(numbers, num_classes, f"the {part} part", task)


def _load_tokenizer(name: str) -> Any:
    """Return a tokenizer of a directory, or of the hub if there is no such directory."""
    try:
        import transformers
    except ImportError as error:
        raise DataError(
            "dataset text needs the package transformers, which is not installed",
            fix="pip install 'dpsweep[text]'",
        ) from error
    place = Path(name).expanduser()
    is_local = place.is_dir()
    if not is_local and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise DataError(f"no directory {place}", fix="correct data.tokenizer")
    try:
        return transformers.AutoTokenizer.from_pretrained(
            place if is_local else name, local_files_only=is_local
        )
    except Exception as error:  # the hub, the network and each kind of tokenizer raise their own
        raise DataError(
            f"cannot load the tokenizer {name}: {' '.join(str(error).split())[:200]}",
            fix="give a directory written by save_pretrained of a tokenizer",
        ) from error


def _text_info(tokenizer: Any, name: str) -> TextInfo:
    pad = tokenizer.pad_token_id
    if pad is None:
        pad = tokenizer.eos_token_id
    if pad is None:
        raise DataError(
            f"the tokenizer {name} has neither a pad token nor an end of text",
            fix="add one: tokenizer.add_special_tokens({'pad_token': '<pad>'}), then save it",
        )
    return TextInfo(len(tokenizer), int(pad))


def _tokenize(preparation: TextRecords, texts: Sequence[Any], part: str) -> np.ndarray:
    """Return int64 (texts, length): special tokens included, cut or padded on the right."""
    try:
        return preparation.prepare(texts)
    except RecordError as error:
        raise DataError(
            f"texts of {part} cannot be read: {error}",
            fix="clean the texts, which must be valid Unicode, or name another data.text_column",
        ) from None


def _open_npz(
    spec: DataSpec, path: Path
) -> tuple[dict[str, int], Callable[[], dict[str, tuple[np.ndarray, Any]]]]:
    headers = npz_headers(path)
    stored = {
        part: key for part, keys in _PARTS.items() for key in keys if f"x_{key}" in headers
    }  # "validation" and "val" both: the latter wins
    if "train" not in stored:
        raise DataError(f"{path.name} has no x_train", fix="save it with numpy.savez")
    has_labels = spec.task != "causal_lm"
    for key in stored.values():
        shape, dtype = headers[f"x_{key}"]
        if len(shape) != 2 or shape[1] != spec.max_length:
            raise DataError(
                f"x_{key} has shape {shown_shape(shape)}, and data.max_length={spec.max_length}",
                fix="store token ids (records, max_length)",
            )
        if dtype.kind not in "iu":
            raise DataError(f"x_{key} has dtype {dtype}", fix="store token ids, which are integers")
        if has_labels and f"y_{key}" not in headers:
            raise DataError(f"{path.name} has no y_{key}", fix="store the labels beside the ids")
        if has_labels:
            label_shape, num_classes = headers[f"y_{key}"][0], int(spec.num_classes or 0)
            check_label_shape(label_shape, shape, num_classes, spec.task, key)

    def read() -> dict[str, tuple[np.ndarray, Any]]:
        with np.load(path, allow_pickle=False) as file:
            return {
                part: (
                    np.ascontiguousarray(npz_array(file, f"x_{key}", path), dtype=np.int64),
                    npz_array(file, f"y_{key}", path) if has_labels else None,
                )
                for part, key in stored.items()
            }

    return {part: headers[f"x_{key}"][0][0] for part, key in stored.items()}, read


def _open_columns(
    spec: DataSpec, path: Path
) -> tuple[dict[str, int], Callable[[], dict[str, Columns]]]:
    """Return the sizes of the own parts, and how to read the columns of all parts."""
    text = spec.text_column or _TEXT
    label = None if spec.task == "causal_lm" else spec.label_column or "label"
    if path.is_dir():
        return _open_saved(path, text, label)
    if path.suffix == ".csv":
        _check_columns(_csv_columns(path), text, label, path.name, are_names=False)
        return {}, lambda: {"train": _columns(csv_rows(path), text, label, path.name)}
    if path.suffix == ".jsonl":
        return {}, lambda: {"train": _columns(json_rows(path), text, label, path.name)}
    raise DataError(
        f"{path.name} is no kind of text that is known",
        fix="give a .csv, .jsonl or .npz file, or a directory of datasets.save_to_disk",
    )


def _check_columns(
    columns: Sequence[str], text: str, label: str | None, where: str, *, are_names: bool = True
) -> None:
    """Check the names of columns; they are told only if they cannot be a record."""
    for key, name in (("text_column", text), ("label_column", label)):
        if name is not None and name not in columns:
            hint = "the first line of a csv file must name its columns"
            if are_names:
                hint = did_you_mean(name, list(columns)) or f"there are: {', '.join(columns[:10])}"
            raise DataError(f"{where} has no column {name!r}", fix=f"set data.{key}; {hint}")


def _csv_columns(path: Path) -> list[str]:
    """Return the names in the first line; no further byte is looked at."""
    try:
        with path.open("rb") as file:
            header = file.readline().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a csv file in UTF-8: {type(error).__name__}") from error
    return next(csv.reader([header]), [])


def csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a csv file in UTF-8, by the names in its first line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file)


def json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file with one in each line."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def _columns(
    rows: Iterator[Mapping[str, Any]], text: str, label: str | None, where: str
) -> Columns:
    texts: list[Any] = []
    labels: list[Any] | None = None if label is None else []
    try:
        for row in rows:
            texts.append(row[text])
            if labels is not None and label is not None:
                labels.append(row[label])
    except (OSError, ValueError, TypeError, KeyError, RecursionError, csv.Error) as error:
        # The message of the error may hold a record.
        raise DataError(
            f"cannot read {where}: {type(error).__name__}",
            fix=f"every record needs {text!r}" + ("" if label is None else f" and {label!r}"),
        ) from None
    return texts, labels


def _open_saved(
    path: Path, text: str, label: str | None
) -> tuple[dict[str, int], Callable[[], dict[str, Columns]]]:
    """Open what ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{path} is read by the package datasets, which is not installed",
            fix="pip install 'dpsweep[text]', or store the texts as .csv or .jsonl",
        ) from error
    try:
        saved = datasets.load_from_disk(str(path))  # maps the files into memory, reads no record
    except Exception as error:  # datasets, pyarrow and the file system raise their own kinds
        raise DataError(
            f"{path} was not written by save_to_disk of datasets: {type(error).__name__}",
            fix="give such a directory, or a .csv, .jsonl or .npz file",
        ) from error
    splits = dict(saved) if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    chosen = {part: splits[key] for part, keys in _PARTS.items() for key in keys if key in splits}
    if "train" not in chosen:
        raise DataError(f"{path} has no split train", because=f"it has {', '.join(splits)}")
    for part, split in chosen.items():
        _check_columns(split.column_names, text, label, f"{path.name} ({part})")

    def read() -> dict[str, Columns]:
        return {
            part: (list(split[text]), None if label is None else list(split[label]))
            for part, split in chosen.items()
        }

    return {part: len(split) for part, split in chosen.items()}, read

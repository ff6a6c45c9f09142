"""Records of text: csv, jsonl, directories of Hugging Face ``datasets``, and token ids in npz.

Texts become token ids of one length, padded on the right with the tokenizer's pad id. As for all
sources, public facts (columns, sizes of own parts, the tokenizer) are had without a private
record; texts and labels are read when asked. Needs the extra ``text``, and no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import DataError, SweepError, described
from dpsweep.trainables.data.raw.preparation import (
    ArrayRecords,
    Preparation,
    RecordError,
    TextRecords,
    TooLongError,
)
from dpsweep.trainables.data.source import (
    Arrays,
    Source,
    TextInfo,
    checked_labels,
    declared_size,
    path_of,
)
from dpsweep.trainables.data.text.ids import next_tokens, open_ids
from dpsweep.trainables.data.text.lengths import refuse_too_few
from dpsweep.trainables.data.text.prompts import prompted
from dpsweep.trainables.data.text.tables import Table, Wanted, choose_parts, open_tables
from dpsweep.trainables.data.text.written import check_packages, left_out

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec

#: Ids and labels of each part.
Read = Callable[[], dict[str, tuple[np.ndarray, Any]]]
#: How to give what a text cannot do without.
_MISSING = {
    "tokenizer": "set data.tokenizer: a tokenizer of transformers, by its directory or its name",
    "max_length": "set data.max_length: the most tokens of a record",
}


def open_text(spec: DataSpec) -> Source:
    """Return the source of ``dataset: text``: what ``data.path`` holds, by its name.

    ``.csv`` (with a header) and ``.jsonl`` hold the columns that the spec names; a directory was
    written by ``datasets``' ``save_to_disk`` or holds one such file for each split, and
    ``data.splits`` says which split is which part; ``.npz`` holds token ids ``x_train`` (records,
    max_length), padded on the right, and ``y_train`` unless the task is causal_lm, and perhaps
    ``x_val``, ``y_val``, ``x_test``, ``y_test``.

    A split without labels (the column is not there, or -1 everywhere) is no test part. Labels of
    own parts are looked at for that, those of the training source are not.

    Raises:
        DataError: It is missing, incomplete or not as declared, or a package is not installed.
    """
    path = path_of(spec, "a .csv, .jsonl or .npz file, or a directory of datasets.save_to_disk")
    if not path.exists():
        raise DataError(f"no file or directory {path}", fix="correct data.path")
    for key, fix in _MISSING.items():
        if getattr(spec, key) is None:
            raise DataError(f"data.{key} is missing for text", fix=fix)
    if not spec.declared_classes and spec.task != "causal_lm":
        raise DataError(
            "data.num_classes is missing for text",
            because="the labels are private, so the classes must be declared",
            fix="set data.num_classes; or data.class_names, if the labels are words",
        )
    tokenizer = load_tokenizer(str(spec.tokenizer))
    info = _text_info(tokenizer, spec)
    length = int(spec.max_length or 0)
    preparation: Preparation = ArrayRecords.as_read((length,), "int64")
    if path.suffix == ".npz":
        sizes, read_ids, notes = open_ids(spec, path)
    else:
        refuse_too_few(tokenizer, spec)
        wanted = Wanted.of(spec)
        tables, sizes, notes = _open_parts(spec, path, wanted)
        if info.generation is not None:
            notes += tuple(filter(None, [left_out(info.generation.scores)]))
        if spec.prompt_column is not None:
            read_ids = _read_prompts(tables, wanted, tokenizer, info, spec)
        else:
            column, *pair = wanted.texts.values()
            preparation = texts = TextRecords(
                length,
                info.pad_id,
                column,
                tokenizer,
                pair_column=pair[0] if pair else None,
                truncation=spec.truncation or "longest_first",
            )
            read_ids = _read_texts(tables, wanted, texts)

    num_classes = info.vocabulary_size if spec.task == "causal_lm" else spec.declared_classes

    def read() -> dict[str, Arrays]:
        return {
            part: _finished(spec, ids, labels, info, num_classes, part)
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
        notes=notes,
    )


def _open_parts(
    spec: DataSpec, path: Path, wanted: Wanted
) -> tuple[dict[str, Table], dict[str, int], tuple[str, ...]]:
    """Return the tables of the parts, the sizes that may be looked at, and notes."""
    tables, has_sizes = open_tables(path)
    splits = spec.splits
    named = {} if splits is None else splits.model_dump()
    chosen = choose_parts(tables, named, path)
    notes = []
    for part in [part for part in chosen if part != "train"]:
        table = tables[chosen[part]]
        if wanted.label is None or table.has_labels(wanted.label):
            continue
        problem = f"the split {chosen[part]} of {path.name} has no labels"
        if part == "validation" or named.get(part) or spec.test.visibility == "public":
            others = [name for name in tables if name not in chosen.values()]
            other = others[0] if others else "validation"
            fix = f"name one that has: data.splits.{part}, for example {other}"
            raise DataError(problem, fix=fix + "; or correct data.label_column")
        notes.append(f"{problem} and is left out; data.splits.test names another")
        del chosen[part]
    for name in chosen.values():
        wanted.check(tables[name])
    unused = [name for name in tables if name not in (*chosen.values(), "test")]
    if unused and "validation" not in chosen:
        notes.append(
            f"splits of {path.name} that are not used: {', '.join(unused[:10])}; "
            "data.splits names them"
        )
    sizes = {
        part: tables[name].count() for part, name in chosen.items() if has_sizes or part != "train"
    }
    return {part: tables[name] for part, name in chosen.items()}, sizes, tuple(notes)


def _read_texts(tables: Mapping[str, Table], wanted: Wanted, preparation: TextRecords) -> Read:
    def read() -> dict[str, tuple[np.ndarray, Any]]:
        parts = {}
        for part, table in tables.items():
            columns = table.read(wanted.names)
            texts = columns[: len(wanted.texts)]
            records = texts[0] if len(texts) == 1 else list(zip(*texts))
            ids = _tokenize(preparation.prepare, part, records)
            parts[part] = (ids, None if wanted.label is None else columns[-1])
        return parts

    return read


def _read_prompts(
    tables: Mapping[str, Table], wanted: Wanted, tokenizer: Any, info: TextInfo, spec: DataSpec
) -> Read:
    assert info.end_id is not None
    options: dict[str, Any] = {
        "length": int(spec.max_length or 0),
        "pad_id": info.pad_id,
        "end_id": info.end_id,
        "truncation": spec.truncation or "longest_first",
    }

    def read() -> dict[str, tuple[np.ndarray, Any]]:
        return {
            part: _tokenize(
                lambda *texts: prompted(tokenizer, *texts, **options),
                part,
                *table.read(wanted.names),
            )
            for part, table in tables.items()
        }

    return read


def _finished(
    spec: DataSpec, ids: np.ndarray, labels: Any, info: TextInfo, num_classes: int, part: str
) -> Arrays:
    """Return int64 ids and labels as the task wants them."""
    if len(ids) and (ids.min() < 0 or ids.max() >= info.vocabulary_size):
        # Which record it is stays unsaid: it is private.
        raise DataError(
            f"{part} has token ids outside 0..{info.vocabulary_size - 1}",
            fix="use the tokenizer that the ids were made with",
        )
    task = spec.task
    if task == "causal_lm":
        return ids, next_tokens(ids, info.pad_id) if labels is None else labels
    try:
        numbers = np.asarray(labels)
        if numbers.dtype.kind in "OSU" and spec.has_named_labels:
            numbers = _of_names(numbers, spec.class_names or (), part)
        elif numbers.dtype.kind in "OSU":
            numbers = numbers.astype(np.int64)
        if not numbers.size:  # said where records are counted
            numbers = numbers.astype(np.int64)
        if task == "classification" and numbers.dtype.kind not in "iub":
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"the labels of {part} are not class numbers",
            fix="number the classes from 0; or, of words, set data.class_names to them and leave "
            "out data.num_classes"
            if task == "classification"
            else "number the classes from 0",
        ) from None
    return ids, checked_labels(numbers, num_classes, f"the {part} part", task)


def _of_names(labels: np.ndarray, names: Sequence[str], part: str) -> np.ndarray:
    """Return the numbers of the classes whose declared names the labels are.

    Raises:
        DataError: A label is none of them; which one stays unsaid, as labels are private.
    """
    number_of = {name: number for number, name in enumerate(names)}
    words = [str(label).strip() for label in labels.tolist()]
    if not number_of.keys() >= set(words):
        raise DataError(
            f"{part} has a label that is none of data.class_names",
            fix="correct the names, upper and lower case count, or the file; labels that are "
            "numbers from 0 need data.num_classes beside the names",
        )
    return np.array([number_of[word] for word in words], dtype=np.int64)


def load_tokenizer(name: str) -> Any:
    """Return a tokenizer of a directory, or of the hub if there is no such directory."""
    try:
        import transformers
    except ImportError as error:
        raise DataError(
            "dataset text needs the package transformers, which is not installed",
            fix="pip install 'dpsweep[text]'",
        ) from error
    place = Path(name).expanduser()
    if place.is_dir():
        try:
            return transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
        except Exception as error:  # each kind of tokenizer raises its own
            raise _no_tokenizer(name, error) from error
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise DataError(f"no directory {place}", fix="correct data.tokenizer")
    loaded = _tokenizer_of_hub(name)
    if isinstance(loaded, DataError):
        raise loaded
    return loaded


@lru_cache(maxsize=8)  # without a network each try takes half a minute
def _tokenizer_of_hub(name: str) -> Any:
    """Return a tokenizer of the hub, from the cache of this machine if it is there, or an error."""
    import transformers
    from huggingface_hub.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it says of each retry that there is no network
    try:
        for is_cached in (True, False):
            try:
                return transformers.AutoTokenizer.from_pretrained(name, local_files_only=is_cached)
            except Exception as error:  # the hub, the network and each kind raise their own
                if not is_cached:
                    return _no_tokenizer(name, error)
    finally:
        logging.set_verbosity(verbosity)


def _no_tokenizer(name: str, error: Exception) -> DataError:
    return DataError(
        f"data.tokenizer: cannot load {name}, which is no directory here, nor on the Hugging Face "
        f"hub as far as it can be reached ({type(error).__name__})",
        fix="give a directory written by save_pretrained of a tokenizer",
    )


def _text_info(tokenizer: Any, spec: DataSpec) -> TextInfo:
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    if pad is None:
        pad = end
    if pad is None:
        raise DataError(
            f"the tokenizer {spec.tokenizer} has neither a pad token nor an end of text",
            fix="add one: tokenizer.add_special_tokens({'pad_token': '<pad>'}), then save it",
        )
    size = len(tokenizer)
    if spec.prompt_column is not None:
        if end is None:
            raise DataError(
                f"the tokenizer {spec.tokenizer} has no end of text, which stands between prompt "
                "and target",
                fix="use one of a language model, or set its eos_token and save it",
            )
        generation = spec.test.generation
        if generation is None:
            return TextInfo(size, int(pad), end_id=int(end))
        check_packages(generation.scores)
        place = Path(str(spec.tokenizer)).expanduser()
        name = str(place.absolute()) if place.is_dir() else str(spec.tokenizer)
        return TextInfo(size, int(pad), None, int(end), name, generation)
    if spec.text_pair_column is not None:
        return TextInfo(size, int(pad), separator_id=_separator(tokenizer, str(spec.tokenizer)))
    return TextInfo(size, int(pad))


def _separator(tokenizer: Any, name: str) -> int | None:
    """Return the id after whose first place a tokenizer counts tokens to the second text.

    None for a tokenizer that counts all tokens to one text.

    Raises:
        DataError: It tells the two texts apart in another way.
    """
    try:
        made = tokenizer("a b", "a")
    except Exception as error:  # as a generic one without a rule for pairs
        raise DataError(
            f"the tokenizer {name} makes no pairs: {type(error).__name__}",
            fix="use the tokenizer of an encoder, such as BERT or RoBERTa",
        ) from None
    ids, kinds = list(made["input_ids"]), list(made.get("token_type_ids", ()))
    if not any(kinds):
        return None
    border = kinds.index(1) if 1 in kinds else 0
    separator = int(ids[border - 1])
    if kinds != [int(place > ids.index(separator)) for place in range(len(ids))]:
        raise DataError(
            f"the tokenizer {name} numbers the texts of a pair as {kinds}",
            because="networks here take 0 up to a separator and 1 after it",
            fix="use the tokenizer of an encoder such as BERT or RoBERTa",
        )
    return separator


def _tokenize(how: Callable[..., Any], part: str, *columns: Sequence[Any]) -> Any:
    """Return what a tokenizer makes of columns; what it says of a record stays unsaid."""
    try:
        return how(*columns)
    except RecordError as error:
        fix = "clean the texts, which must be valid Unicode, or name other columns"
        if isinstance(error, TooLongError):
            fix = "raise data.max_length, or set data.truncation: longest_first"
        raise DataError(f"texts of {part} cannot be read: {error}", fix=fix) from None
    except SweepError:
        raise
    except Exception as error:  # of a tokenizer: its words may quote a text, or tell its length
        raise DataError(
            f"texts of {part} cannot be read: {described(error)}",
            fix="use another data.tokenizer, or clean the texts",
        ) from None

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_text import PAD, VOCABULARY, save_tokenizer

from dpsweep.foundation.errors import DataError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.hashes import part_hash
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.data.tasks import IGNORED
from dpsweep.trainables.data.text import opening as text_data
from dpsweep.trainables.data.text.ids import next_tokens

MakeSpec = Callable[..., DataSpec]
TEXTS = ["good film", "a bad book and a poor song", "fine", "what is this"]
LABELS = [1, 0, 1, 0]
CLS, SEP, UNK = 2, 3, 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def text_spec(make_spec: MakeSpec, tokenizer: Path) -> MakeSpec:
    def make(path: Path, **given: Any) -> DataSpec:
        values: dict[str, Any] = {
            "dataset": "text",
            "path": str(path),
            "num_records": 20,
            "num_classes": 2,
            "tokenizer": str(tokenizer),
            "max_length": 6,
        }
        values = {**values, **given}
        return make_spec(**{key: value for key, value in values.items() if value is not None})

    return make


def rows(count: int = 20) -> list[dict[str, Any]]:
    return [{"text": TEXTS[i % 4], "label": LABELS[i % 4], "id": i} for i in range(count)]


def write_csv(path: Path, records: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
    return path


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return path


def write_saved(path: Path, records: list[dict[str, Any]]) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(records).save_to_disk(path)
    return path


WRITERS = {"d.csv": write_csv, "d.jsonl": write_jsonl, "saved": write_saved}


def ids_of(text: str) -> list[int]:
    from tiny_text import SPECIAL, WORDS

    known = {token: number for number, token in enumerate([*SPECIAL, *WORDS])}
    ids = [CLS, *(known.get(word, UNK) for word in text.split())]
    ids = [*ids[:5], SEP]
    return ids + [PAD] * (6 - len(ids))


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_file_gives_the_same_records(
    text_spec: MakeSpec, tmp_path: Path, name: str
) -> None:
    data = load_dataset(text_spec(WRITERS[name](tmp_path / name, rows())))
    assert (data.info.num_private, data.info.num_validation) == (16, 4)
    assert (data.info.input_shape, data.info.num_classes) == ((6,), 2)
    assert (data.info.task, data.info.text) == ("classification", TextInfo(VOCABULARY, PAD))
    found = sorted((tuple(x), int(y)) for part in data.parts.values() for x, y in zip(*part))
    expected = sorted((tuple(ids_of(r["text"])), r["label"]) for r in rows())
    assert found == expected
    inputs, labels = data.parts["private"]
    assert (inputs.dtype, labels.dtype) == (np.int64, np.int64)
    assert inputs.flags.c_contiguous
    assert data.hashes["private"] == part_hash(inputs)
    csv_data = load_dataset(text_spec(write_csv(tmp_path / "again.csv", rows())))
    assert csv_data.content_hash == data.content_hash
    changed = rows()
    changed[3]["text"] = "a good film"
    other = load_dataset(text_spec(write_csv(tmp_path / "other.csv", changed)))
    assert other.content_hash != data.content_hash


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
@pytest.mark.parametrize("names", [["bad", "good"], ["1", "0"]])
def test_labels_may_be_the_declared_names(
    text_spec: MakeSpec, tmp_path: Path, name: str, names: list[str]
) -> None:
    words = [row | {"label": names[row["label"]]} for row in rows()]
    path = WRITERS[name](tmp_path / name, words)
    data = load_dataset(text_spec(path, num_classes=None, class_names=names))
    numbered = load_dataset(text_spec(write_csv(tmp_path / "numbers.csv", rows())))
    assert data.info.class_names == tuple(names)
    assert data.info.num_classes == 2
    for part, (ids, labels) in numbered.parts.items():
        assert data.parts[part][0].tolist() == ids.tolist()
        assert data.parts[part][1].tolist() == labels.tolist()


@pytest.mark.parametrize("name", ["d.csv", "d.jsonl"])
def test_names_beside_a_number_of_classes_are_names_alone(
    text_spec: MakeSpec, tmp_path: Path, name: str
) -> None:
    path = WRITERS[name](tmp_path / name, rows())
    named = load_dataset(text_spec(path, class_names=["1", "0"]))
    assert named.info.class_names == ("1", "0")
    plain = load_dataset(text_spec(path))
    assert named.parts["private"][1].tolist() == plain.parts["private"][1].tolist()


def test_words_of_a_public_file_are_those_of_the_study(text_spec: MakeSpec, tmp_path: Path) -> None:
    names = ["bad", "good"]
    words = [row | {"label": names[row["label"]]} for row in rows(40)]
    own = write_csv(tmp_path / "own.csv", words[:20])
    others = [row | {"text": f"{row['text']} film"} for row in words[20:]]
    public = {"path": str(write_csv(tmp_path / "public.csv", others)), "num_records": 20}
    spec = text_spec(own, num_classes=None, class_names=names, public=public)
    labels = load_dataset(spec).parts["public"][1]
    assert labels.tolist() == [row["label"] for row in rows(40)[20:]]


def test_a_label_that_is_none_of_the_names_stays_unsaid(
    text_spec: MakeSpec, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "d.csv", [*rows(), {"text": "x", "label": "geheim", "id": 0}])
    with pytest.raises(DataError, match=r"none of data\.class_names") as caught:
        load_dataset(text_spec(path, num_classes=None, class_names=["bad", "good"]))
    assert "geheim" not in str(caught.value)


def test_splits_on_disk_are_parts_of_their_own(text_spec: MakeSpec, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    parts = {"train": 20, "validation": 3, "test": 2}
    splits = {name: datasets.Dataset.from_list(rows(count)) for name, count in parts.items()}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    spec = text_spec(tmp_path / "saved", num_records=18)
    info = describe_dataset(spec)
    assert info.has_own_validation
    assert (info.num_private, info.num_validation, info.num_test) == (18, 3, 2)  # declared
    data = load_dataset(spec)
    assert [len(data.parts[p][1]) for p in ("private", "validation", "test")] == [20, 3, 2]
    with pytest.raises(DataError, match="test part of its own"):
        describe_dataset(text_spec(tmp_path / "saved", test={"fraction": 0.1}))


def test_facts_come_without_a_private_record(text_spec: MakeSpec, tmp_path: Path) -> None:
    """A file that no reader could read to its end is described all the same."""
    path = write_csv(tmp_path / "d.csv", rows())
    path.write_bytes(path.read_bytes() + b"\xff\xfe,1\n" * 10_000)
    assert describe_dataset(text_spec(path)).num_private == 16
    with pytest.raises(DataError, match=r"^d\.csv is not UTF-8") as caught:
        load_dataset(text_spec(path))
    assert "film" not in str(caught.value)
    broken = tmp_path / "d.jsonl"
    broken.write_text('{"text": "secret", "label": 1\n')
    assert describe_dataset(text_spec(broken)).num_private == 16
    with pytest.raises(DataError, match=r"cannot read d\.jsonl") as caught:
        load_dataset(text_spec(broken))
    assert "secret" not in str(caught.value)


def test_max_private_and_public_parts_work_on_ids(text_spec: MakeSpec, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "d.csv", rows())
    data = load_dataset(text_spec(path, max_private=5, public={"fraction": 0.3}))
    sizes = {part: len(labels) for part, (_, labels) in data.parts.items()}
    assert sizes == {"private": 5, "public": 6, "validation": 4, "test": 0}
    search = data.for_public_search(with_test=False)
    assert search.info.text == data.info.text
    assert np.array_equal(search.parts["private"][0], data.parts["public"][0])


def test_next_tokens() -> None:
    ids = np.array([[5, 7, 6, 0, 0], [4, 4, 4, 4, 4], [0, 0, 0, 0, 0]])
    no = IGNORED
    expected = [[7, 6, no, no, no], [4, 4, 4, 4, no], [no] * 5]
    assert next_tokens(ids, pad_id=0).tolist() == expected


def test_a_language_model_needs_texts_alone(
    make_spec: MakeSpec, tmp_path: Path, text_spec: MakeSpec
) -> None:
    place = save_tokenizer(tmp_path / "gpt", special=False, pad=None)
    path = write_csv(tmp_path / "d.csv", [{"line": r["text"]} for r in rows()])
    spec = text_spec(
        path, task="causal_lm", num_classes=None, text_column="line", tokenizer=str(place)
    )
    data = load_dataset(spec)
    assert data.info.num_classes == VOCABULARY
    assert data.info.text == TextInfo(VOCABULARY, SEP)  # no pad token: the end of text
    assert data.info.class_names == ()
    inputs, labels = data.parts["private"]
    assert labels.shape == inputs.shape
    assert np.array_equal(labels, next_tokens(inputs, SEP))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_csv_file_end_as_on_any_machine(
    text_spec: MakeSpec, tmp_path: Path, end: str
) -> None:
    lines = ["text,label", *(f"{row['text']},{row['label']}" for row in rows())]
    (tmp_path / "d.csv").write_bytes(end.join(lines).encode())
    data = load_dataset(text_spec(tmp_path / "d.csv"))
    as_written = load_dataset(text_spec(write_csv(tmp_path / "again.csv", rows())))
    assert data.content_hash == as_written.content_hash


def test_a_mark_of_byte_order_is_read_in_jsonl_too(text_spec: MakeSpec, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", rows())
    plain = load_dataset(text_spec(path)).content_hash
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load_dataset(text_spec(path)).content_hash == plain


@pytest.mark.parametrize("line", ["[1]", '"fine"', "7", "{nothing", "[" * 100_000])
def test_a_line_that_is_no_object(text_spec: MakeSpec, tmp_path: Path, line: str) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", rows())
    path.write_text(path.read_text() + line)
    with pytest.raises(DataError, match=r"cannot read d\.jsonl: a line is no JSON") as caught:
        load_dataset(text_spec(path))
    assert caught.value.fix == "write one JSON object a line"


def test_names_of_columns_say_nothing_of_what_follows(text_spec: MakeSpec, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"text,label\nr\xe9sum\xe9,1\n")
    describe_dataset(text_spec(tmp_path / "d.csv"))
    (tmp_path / "d.csv").write_bytes(b"t\xe9xt,label\nfine,1\n")
    with pytest.raises(DataError, match="not a csv file in UTF-8"):
        describe_dataset(text_spec(tmp_path / "d.csv"))
    (tmp_path / "d.csv").write_text('"text,label\n' + "fine,1\n" * 200_000)
    limit = csv.field_size_limit(2**17)
    try:
        with pytest.raises(DataError, match="a first line that cannot be read"):
            describe_dataset(text_spec(tmp_path / "d.csv"))
    finally:
        csv.field_size_limit(limit)


def test_ids_of_an_npz_file(text_spec: MakeSpec, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    ids = np.array([ids_of(r["text"]) for r in rows()], np.int32)
    labels = np.array([r["label"] for r in rows()])
    val = {"x_val": ids[:3], "y_val": labels[:3]}
    np.savez(path, x_train=ids, y_train=labels, **val)
    data = load_dataset(text_spec(path))
    assert (data.info.num_private, data.info.num_validation) == (20, 3)
    assert data.parts["private"][0].dtype == np.int64
    assert np.array_equal(data.parts["validation"][0], ids[:3])
    with pytest.raises(DataError, match=r"data\.max_length=7"):
        describe_dataset(text_spec(path, max_length=7))
    np.savez(path, x_train=ids.astype(np.float32), y_train=labels)
    with pytest.raises(DataError, match="token ids, which are integers"):
        raise_with_fix(lambda: describe_dataset(text_spec(path)))
    np.savez(path, x_train=ids)
    with pytest.raises(DataError, match="no y_train"):
        describe_dataset(text_spec(path))
    several = np.stack([labels, 1 - labels], axis=1)
    np.savez(path, x_train=ids, y_train=several)
    data = load_dataset(text_spec(path, task="multi_label"))
    assert (data.parts["private"][1].dtype, data.info.task) == (np.float32, "multi_label")
    ids[0, 1] = VOCABULARY
    np.savez(path, x_train=ids, y_train=labels)
    with pytest.raises(DataError, match="outside") as caught:
        load_dataset(text_spec(path))
    assert f" {VOCABULARY} " not in str(caught.value)


@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_labels_of_ids_that_are_objects(text_spec: MakeSpec, tmp_path: Path, task: str) -> None:
    ids = np.array([ids_of(r["text"]) for r in rows()])
    labels = np.zeros((20,) if task == "classification" else (20, 2), object)
    np.savez(tmp_path / "d.npz", x_train=ids, y_train=labels)
    with pytest.raises(DataError, match="y_train has dtype object"):
        describe_dataset(text_spec(tmp_path / "d.npz", task=task))


def test_ids_that_are_no_part_are_noted(text_spec: MakeSpec, tmp_path: Path) -> None:
    ids = np.array([ids_of(r["text"]) for r in rows()])
    labels = np.array([r["label"] for r in rows()])
    np.savez(tmp_path / "d.npz", x_train=ids, y_train=labels, x_dev=ids, y_dev=labels)
    (note,) = describe_dataset(text_spec(tmp_path / "d.npz")).notes
    assert note.startswith("arrays of d.npz that are not used: x_dev;")


def raise_with_fix(call: Callable[[], Any]) -> None:
    try:
        call()
    except DataError as error:
        raise DataError(str(error)) from error


@pytest.mark.parametrize(
    ("records", "given", "words"),
    [
        (rows(), {"text_column": "txt"}, "no column 'txt'"),
        (rows(), {"label_column": "labels"}, "no column 'labels'"),
        ([{"text": "a", "label": "positive"}] * 20, {}, "not class numbers"),
        ([{"text": "a", "label": 0.5}] * 20, {}, "not class numbers"),
        ([{"text": "a", "label": 2}] * 20, {}, r"labels outside 0\.\.1"),
        (rows(), {"tokenizer": "/nowhere"}, "no directory /nowhere"),
    ],
)
@pytest.mark.parametrize("name", ["d.csv", "saved"])
def test_mistakes_name_what_is_wrong(
    text_spec: MakeSpec, tmp_path: Path, records: Any, given: Any, words: str, name: str
) -> None:
    with pytest.raises(DataError, match=words):
        raise_with_fix(
            lambda: load_dataset(text_spec(WRITERS[name](tmp_path / name, records), **given))
        )


def test_a_csv_file_without_a_header_does_not_tell_its_first_record(
    text_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "d.csv").write_text("alice has text,1\nbob has none,0\n")
    with pytest.raises(DataError, match="no column 'text'") as caught:
        load_dataset(text_spec(tmp_path / "d.csv"))
    assert "alice" not in str(caught.value) + str(caught.value.fix)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("label,text\n0,bad, really\n", "has a row with more fields than its first line"),
        ("text,label\nbad, really,0\n", "has a row with more fields than its first line"),
        ('text,label\n"never closed,0\nbad,1\n', "has a row with fewer fields"),
        ("text,label\nbad\n", "has a row with fewer fields"),
        ("text;label\nbad;0\n", "its fields are to be parted by commas"),
        ("text, label\nbad,0\n", "one differs in capitals or spaces alone"),
        ("Text,label\nbad,0\n", "one differs in capitals or spaces alone"),
        ("", "its first line is empty"),
    ],
)
def test_a_csv_file_that_was_written_by_hand(
    text_spec: MakeSpec, tmp_path: Path, content: str, wanted: str
) -> None:
    path = tmp_path / "hand.csv"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        load_dataset(text_spec(path))
    assert wanted in str(caught.value)
    assert "really" not in str(caught.value)


def test_a_csv_file_of_a_header_has_no_records(text_spec: MakeSpec, tmp_path: Path) -> None:
    """How many there are is private; what is declared is trained for."""
    path = tmp_path / "empty.csv"
    path.write_text("text,label\n")
    assert len(load_dataset(text_spec(path)).parts["private"][1]) == 0


def test_a_long_text_is_read_whole(text_spec: MakeSpec, tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "long.csv", [{"text": "bad " * 50_000, "label": 1, "id": 0}, *rows()]
    )
    assert load_dataset(text_spec(path)).info.num_classes == 2


def test_a_text_that_is_no_unicode_is_not_quoted(text_spec: MakeSpec, tmp_path: Path) -> None:
    lines = [json.dumps({"text": "secret \ud800", "label": 0})] * 20
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match="cannot read a text") as caught:
        load_dataset(text_spec(tmp_path / "d.jsonl"))
    assert "secret" not in str(caught.value)


def test_what_is_no_text(text_spec: MakeSpec, tmp_path: Path) -> None:
    for name, words in (
        ("x.csv", "no file"),
        ("x.parquet", "no kind of text"),
        ("x", "save_to_disk"),
    ):
        if name == "x.parquet":
            (tmp_path / name).touch()
        if name == "x":
            (tmp_path / name).mkdir()
        with pytest.raises(DataError, match=words):
            describe_dataset(text_spec(tmp_path / name))
    missing = write_saved(tmp_path / "none", [{"text": None, "label": 0}] * 20)
    with pytest.raises(DataError, match="values that are not text"):
        load_dataset(text_spec(missing))


@pytest.mark.parametrize("package", ["transformers", "datasets"])
def test_a_missing_package_is_named(
    text_spec: MakeSpec, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_saved(tmp_path / "saved", rows())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"package {package}, which is not installed") as caught:
        describe_dataset(text_spec(path))
    assert "dpsweep[text]" in str(caught.value.fix)


def test_texts_of_another_file_are_public(text_spec: MakeSpec, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "own.csv", rows())
    public = {"path": str(write_csv(tmp_path / "other.csv", rows(9))), "num_records": 9}
    spec = text_spec(path, public=public)
    data = load_dataset(spec)
    assert (data.info.num_private, data.info.num_public) == (16, 9)
    expected = load_dataset(text_spec(path, public={"positions": list(range(9))}))
    for ours, theirs in zip(data.parts["public"], expected.parts["public"]):
        assert np.array_equal(ours, theirs)
    del public["num_records"]
    with pytest.raises(DataError, match="is counted only as it is read"):
        describe_dataset(text_spec(path, public=public))


def test_a_tokenizer_without_an_end(text_spec: MakeSpec, tmp_path: Path, monkeypatch) -> None:
    class Bare:
        pad_token_id = eos_token_id = None

    monkeypatch.setattr(text_data, "load_tokenizer", lambda name: Bare())
    with pytest.raises(DataError, match="neither a pad token nor an end of text"):
        describe_dataset(text_spec(write_csv(tmp_path / "d.csv", rows())))

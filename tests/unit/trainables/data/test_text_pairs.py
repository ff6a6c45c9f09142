"""Pairs of texts, prompts with targets, and the splits of a directory."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_text import PAD, VOCABULARY, save_encoder, save_gpt2

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.raw.files import read_files
from dpsweep.trainables.data.raw.preparation import RecordError, TextRecords, load, save
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.data.sources import open_source
from dpsweep.trainables.data.tasks import IGNORED
from dpsweep.trainables.data.text.opening import load_tokenizer
from dpsweep.trainables.data.text.prompts import _cut, parted, prompted
from dpsweep.trainables.networks.build import build_model

MakeSpec = Callable[..., DataSpec]
datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()
SEP = 3
LONGER = "raise data.max_length, or set data.truncation: longest_first"
PAIRS = [("good film", "a bad book"), ("fine", "poor song and film"), ("a b c d e f g h", "b")]


def rows(count: int = 20) -> list[dict[str, Any]]:
    """QNLI as Hugging Face has it: question, sentence, label, idx."""
    return [
        {"question": PAIRS[i % 3][0], "sentence": PAIRS[i % 3][1], "label": i % 2, "idx": i}
        for i in range(count)
    ]


def unlabelled(count: int) -> list[dict[str, Any]]:
    return [{**row, "label": -1} for row in rows(count)]


def saved(path: Path, splits: dict[str, list[dict[str, Any]]]) -> Path:
    parts = {name: datasets.Dataset.from_list(records) for name, records in splits.items()}
    datasets.DatasetDict(parts).save_to_disk(path)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture
def text_spec(make_spec: MakeSpec, bert: Path) -> MakeSpec:
    def make(path: Path, **changes: Any) -> DataSpec:
        values: dict[str, Any] = {
            "dataset": "text", "path": str(path), "num_records": 20, "num_classes": 2,
            "tokenizer": str(bert), "max_length": 10, "text_column": "question",
            "text_pair_column": "sentence",
        }  # fmt: skip
        values = {**values, **changes}
        return make_spec(**{key: value for key, value in values.items() if value is not None})

    return make


def sst2(text_spec: MakeSpec, path: Path, **changes: Any) -> DataSpec:
    return text_spec(path, text_column="sentence", text_pair_column=None, **changes)


def test_a_pair_is_read_as_the_tokenizer_makes_it(text_spec, tmp_path: Path, bert: Path) -> None:
    data = load_dataset(text_spec(saved(tmp_path / "d", {"train": rows()})))
    assert data.info.text == TextInfo(VOCABULARY, PAD, separator_id=SEP)
    tokenizer = load_tokenizer(str(bert))
    made = [
        tokenizer(a, b, truncation=True, max_length=10, padding="max_length")["input_ids"]
        for a, b in PAIRS
    ]
    ids = np.concatenate([data.parts["private"][0], data.parts["validation"][0]])
    assert {tuple(row) for row in ids.tolist()} == {tuple(row) for row in made}


@pytest.mark.parametrize("how", ["longest_first", "only_first", "only_second"])
def test_truncation_is_that_of_the_tokenizer(text_spec, tmp_path: Path, bert: Path, how) -> None:
    texts = [("a b c d", "e f g h a"), ("a b c d e", "f g h e")]
    records = [{"question": a, "sentence": b, "label": 0} for a, b in texts] * 10
    spec = text_spec(saved(tmp_path / "d", {"train": records}), truncation=how, max_length=9)
    data = load_dataset(spec)
    tokenizer = load_tokenizer(str(bert))
    made = {tuple(tokenizer(a, b, truncation=how, max_length=9)["input_ids"]) for a, b in texts}
    ids = np.concatenate([data.parts["private"][0], data.parts["validation"][0]])
    assert {tuple(row) for row in ids.tolist()} == made
    assert len(made) == 2
    if how != "longest_first":
        with pytest.raises(DataError, match=f"{how} cuts one text, and the other may fill") as said:
            load_dataset(spec.model_copy(update={"max_length": 6}))
        assert said.value.fix == LONGER
        odd = [record | {"question": "a \ud800"} for record in records]
        (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, odd)))
        with pytest.raises(DataError, match="cannot read a text") as said:
            load_dataset(spec.model_copy(update={"path": str(tmp_path / "d.jsonl")}))
        assert "valid Unicode" in said.value.fix


def test_the_network_sees_which_text_a_token_is_of(text_spec, tmp_path: Path, bert: Path) -> None:
    """Logits equal those of transformers itself, which is handed the types of the tokenizer."""
    spec = text_spec(saved(tmp_path / "d", {"train": rows()}))
    info = describe_dataset(spec)
    model = build_model(f"text/{bert}", info, seed=0).eval()
    network = model.get_submodule("network")
    network.bert.embeddings.token_type_embeddings.weight.data *= 100  # random ones are small
    tokenizer = load_tokenizer(str(bert))
    firsts, seconds = zip(*PAIRS)
    batch = tokenizer(
        list(firsts), list(seconds), truncation=True, max_length=10, padding="max_length",
        return_tensors="pt",
    )  # fmt: skip
    assert batch["token_type_ids"].any()
    with torch.no_grad():
        expected = network(**batch).logits
        assert torch.allclose(model(batch["input_ids"]), expected, atol=1e-6)
        blind = network(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert not torch.allclose(blind, expected, atol=1e-4)


def test_roberta_sees_no_types(text_spec, tmp_path: Path) -> None:
    place = save_encoder(
        tmp_path / "roberta", "RobertaForMaskedLM", pad_token_id=0, max_position_embeddings=20,
        type_vocab_size=1,
    )  # fmt: skip
    spec = text_spec(saved(tmp_path / "d", {"train": rows()}), tokenizer=str(place))
    model = build_model(f"text/{place}", describe_dataset(spec), seed=0)
    assert "token_type_ids" not in model.code
    assert model(torch.tensor([[2, 5, SEP, 6, SEP, 0]] * 2)).shape == (2, 2)


def test_a_tokenizer_with_another_way_of_pairs_is_refused(text_spec, tmp_path, monkeypatch) -> None:
    class Odd:
        pad_token_id, eos_token_id = 0, SEP

        def __len__(self) -> int:
            return VOCABULARY

        def __call__(self, first: str, second: str) -> dict[str, list[int]]:
            return {"input_ids": [5, 6, 3, 5, 3], "token_type_ids": [0, 1, 1, 0, 0]}

    from dpsweep.trainables.data.text import opening

    monkeypatch.setattr(opening, "load_tokenizer", lambda name: Odd())
    with pytest.raises(DataError, match="numbers the texts of a pair as"):
        describe_dataset(text_spec(saved(tmp_path / "d", {"train": rows()})))


# Splits


def test_sst2_as_hugging_face_has_it(text_spec, tmp_path: Path) -> None:
    """Its test part has no labels, and is none."""
    path = saved(tmp_path / "sst2", {"train": rows(), "validation": rows(4), "test": unlabelled(3)})
    info = describe_dataset(sst2(text_spec, path))
    assert (info.num_validation, info.num_test, info.has_own_validation) == (4, 0, True)
    assert info.notes == (
        "the split test of sst2 has no labels and is left out; data.splits.test names another",
    )
    data = load_dataset(sst2(text_spec, path))
    assert len(data.parts["test"][1]) == 0
    public = {"visibility": "public"}
    with pytest.raises(DataError, match="split test of sst2 has no labels") as caught:
        describe_dataset(sst2(text_spec, path, test=public))
    assert "data.splits.test, for example validation" in str(caught.value.fix)
    spec = sst2(text_spec, path, test=public, splits={"test": "validation"})
    info = describe_dataset(spec)
    assert (info.num_validation, info.num_test, info.has_own_validation) == (4, 4, False)
    assert info.notes == ()
    data = load_dataset(spec)
    assert len(data.parts["validation"][1]) == 4  # dealt from the training source: 0.2 of 20
    assert len(data.parts["private"][1]) == 16


def test_mnli_names_its_splits(text_spec, tmp_path: Path) -> None:
    parts = {"train": 20, "validation_matched": 4, "validation_mismatched": 5}
    path = saved(
        tmp_path / "mnli",
        {name: rows(n) for name, n in parts.items()} | {"test_matched": unlabelled(2)},
    )
    info = describe_dataset(text_spec(path))
    assert (info.num_validation, info.num_test) == (4, 0)  # 0.2 of the training source
    assert "not used: validation_matched, validation_mismatched, test_matched" in info.notes[0]
    splits = {"validation": "validation_matched", "test": "validation_mismatched"}
    info = describe_dataset(text_spec(path, splits=splits))
    assert (info.num_validation, info.num_test, info.notes) == (4, 5, ())
    for name, words in (
        ("validation_match", "no split 'validation_match'.*"),
        ("test_matched", "the split test_matched of mnli has no labels"),
    ):
        for part in ("validation", "test"):
            with pytest.raises(DataError, match=words) as caught:
                describe_dataset(text_spec(path, splits={part: name}))
            assert f"data.splits.{part}" in str(caught.value.fix)


def test_a_validation_part_without_labels_is_refused(text_spec, tmp_path: Path) -> None:
    path = saved(tmp_path / "d", {"train": rows(), "validation": unlabelled(4)})
    with pytest.raises(DataError, match="the split validation of d has no labels"):
        describe_dataset(text_spec(path))
    none = [{key: row[key] for key in ("question", "sentence")} for row in rows(4)]
    path = saved(tmp_path / "e", {"train": rows(), "validation": none})
    with pytest.raises(DataError, match="the split validation of e has no labels"):
        describe_dataset(text_spec(path))
    with pytest.raises(DataError, match="no column 'label'"):
        describe_dataset(text_spec(saved(tmp_path / "f", {"train": none})))


def test_one_label_makes_a_test_part(text_spec, tmp_path: Path) -> None:
    mixed = [*unlabelled(2), *rows(1)]
    path = saved(tmp_path / "d", {"train": rows(), "validation": rows(4), "test": mixed})
    assert describe_dataset(text_spec(path)).num_test == 3
    with pytest.raises(DataError, match=r"labels outside 0\.\.1"):
        load_dataset(text_spec(path))


def test_a_directory_of_files_is_read_by_their_names(text_spec, tmp_path: Path) -> None:
    for name, count in (("trainset", 20), ("devset", 4)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows(1)[0])
            writer.writeheader()
            writer.writerows(rows(count))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unlabelled(3)))
    splits = {"train": "trainset", "validation": "devset"}
    info = describe_dataset(text_spec(tmp_path, splits=splits))
    assert (info.num_private, info.num_validation, info.num_test) == (20, 4, 0)
    assert len(info.notes) == 1
    data = load_dataset(text_spec(tmp_path, splits=splits))
    assert [len(data.parts[part][1]) for part in ("private", "validation", "test")] == [20, 4, 0]
    with pytest.raises(DataError, match="no split train") as caught:
        describe_dataset(text_spec(tmp_path))
    assert "there are: devset, test, trainset" in str(caught.value.fix)
    (tmp_path / "test.csv").write_text("question,sentence,label\n")
    with pytest.raises(DataError, match=r"test\.csv and test\.jsonl"):
        describe_dataset(text_spec(tmp_path, splits=splits))


# Prompts


def e2e(count: int = 20) -> list[dict[str, Any]]:
    return [
        {"mr": "good film and", "ref": "a good film" if i % 2 else "fine"} for i in range(count)
    ]


@pytest.fixture
def lm_spec(text_spec: MakeSpec, gpt2: Path) -> MakeSpec:
    def make(path: Path, **changes: Any) -> DataSpec:
        given = {"prompt_column": "mr", "target_column": "ref", **changes}
        return text_spec(
            path, task="causal_lm", num_classes=None, text_column=None, text_pair_column=None,
            tokenizer=str(gpt2), **given,
        )  # fmt: skip

    return make


def test_targets_alone_are_learned(lm_spec, tmp_path: Path, gpt2: Path) -> None:
    path = tmp_path / "d.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["mr", "ref"])
        writer.writeheader()
        writer.writerows(e2e())
    data = load_dataset(lm_spec(path))
    assert data.info.text == TextInfo(VOCABULARY, SEP, end_id=SEP)
    good, film, and_, a, fine = (load_tokenizer(str(gpt2)).convert_tokens_to_ids(w) for w in (
        "good", "film", "and", "a", "fine"))  # fmt: skip
    no = IGNORED
    expected = {
        (good, film, and_, SEP, fine, *[SEP] * 5): (no, no, no, fine, SEP, *[no] * 5),
        (good, film, and_, SEP, a, good, film, SEP, SEP, SEP): (
            no, no, no, a, good, film, SEP, no, no, no,
        ),
    }  # fmt: skip
    for part in ("private", "validation"):
        for ids, labels in zip(*data.parts[part]):
            assert tuple(labels) == expected[tuple(ids)]


@pytest.mark.parametrize("how", ["only_first", "only_second"])
def test_a_prompt_or_a_target_that_does_not_fit(lm_spec, tmp_path: Path, how: str) -> None:
    records = [{"mr": "good film and a song", "ref": "a good film and a song"}] * 20
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(DataError, match="does not fit, however much is cut") as caught:
        load_dataset(lm_spec(tmp_path / "d.jsonl", truncation=how, max_length=4))
    assert caught.value.fix == LONGER


def test_the_loss_is_that_of_target_tokens(lm_spec, tmp_path: Path, gpt2: Path) -> None:
    """Labels of the prompt's positions change nothing; those of the target's do."""
    from dpsweep.trainables.data.tasks import task_of

    tokenizer = load_tokenizer(str(gpt2))
    _ids, labels = prompted(
        tokenizer, ["good film"], ["a bad book"], length=10, pad_id=SEP, end_id=SEP
    )
    logits = torch.randn(1, 10, VOCABULARY, generator=torch.Generator().manual_seed(0))
    loss_sum, target = task_of("causal_lm").loss_sum, [*labels[0, 2:6]]
    mean = -np.mean([float(logits[0, 2 + i].log_softmax(-1)[t]) for i, t in enumerate(target)])
    assert float(loss_sum(logits, torch.from_numpy(labels))) == pytest.approx(mean, rel=1e-5)
    logits[0, :2] += torch.randn(2, VOCABULARY)
    assert float(loss_sum(logits, torch.from_numpy(labels))) == pytest.approx(mean, rel=1e-5)


def test_prompts_are_cut_as_named(gpt2: Path) -> None:
    tokenizer = load_tokenizer(str(gpt2))
    options = {"pad_id": PAD, "end_id": SEP}
    (a, b, c, d) = tokenizer("a b c d")["input_ids"]

    def ids(length: int, truncation: str, prompt: str = "a b c", target: str = "d d d"):
        made, labels = prompted(
            tokenizer, [prompt], [target], length=length, truncation=truncation, **options
        )
        prompt_ids, target_ids = parted(made[0], labels[0])
        return prompt_ids.tolist(), target_ids.tolist()

    assert ids(8, "longest_first") == ([a, b, c, SEP], [d, d, d, SEP])
    assert ids(7, "only_first") == ([a, b, SEP], [d, d, d, SEP])
    assert ids(7, "only_second") == ([a, b, c, SEP], [d, d, d])  # it does not end there
    assert ids(7, "longest_first") == ([a, b, c, SEP], [d, d, d])
    assert ids(6, "longest_first") == ([a, b, c, SEP], [d, d])
    for truncation, length in (("only_first", 4), ("only_second", 3)):
        with pytest.raises(RecordError, match="does not fit"):
            ids(length, truncation)
    with pytest.raises(RecordError, match="not text"):
        prompted(tokenizer, [None], ["a"], length=4, **options)


@pytest.mark.parametrize("length", range(0, 9))
def test_the_longer_text_is_cut_token_by_token(length: int) -> None:
    for num_first in range(7):
        for num_second in range(7):
            first, second = list(range(num_first)), list(range(10, 10 + num_second))
            expected = (list(first), list(second))
            while len(expected[0]) + len(expected[1]) > length:
                is_first = len(expected[0]) > len(expected[1])
                expected[not is_first].pop()
            assert _cut(first, second, length, "longest_first") == expected


# Models that are handed on


def test_a_saved_preparation_reads_pairs(text_spec, tmp_path: Path) -> None:
    spec = text_spec(saved(tmp_path / "d", {"train": rows()}), truncation="only_second")
    preparation = open_source(spec).prepared_by
    pairs = PAIRS[:2]
    folder = tmp_path / "kept"
    folder.mkdir()
    save(preparation, folder)
    again, _ = load(folder)
    assert isinstance(again, TextRecords)
    assert (again.pair_column, again.truncation) == ("sentence", "only_second")
    assert np.array_equal(again.prepare(pairs), preparation.prepare(pairs))
    assert again.prepare([again.zero]).shape == (1, 10)
    for wrong in (["good film"], [("good", "film", "and")]):
        with pytest.raises(RecordError, match="not two texts"):
            again.prepare(wrong)
    with pytest.raises(RecordError, match="not text"):
        again.prepare([("good", None)])
    facts = {"kind": "text", "preparation": json.loads((folder / "preparation.json").read_text())[
        "preparation"]}  # fmt: skip
    (tmp_path / "new.csv").write_text("question,sentence\ngood,film\na,b\n")
    names, frame = read_files([tmp_path / "new.csv"], facts)
    assert len(names) == 2
    assert frame.to_dict("list") == {"text": ["good", "a"], "text_pair": ["film", "b"]}
    (tmp_path / "new.txt").write_text("good film\n")
    with pytest.raises(DataError, match="no kind of file for texts"):
        read_files([tmp_path / "new.txt"], facts)
    (tmp_path / "bad.csv").write_text("question,answer\ngood,film\n")
    with pytest.raises(DataError, match="no column 'sentence'"):
        read_files([tmp_path / "bad.csv"], facts)


# Mistakes in a spec


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_pair_column": "b", "task": "causal_lm"}, "text_pair_column: has no meaning"),
        ({"prompt_column": "b"}, "prompt_column: is for task: causal_lm"),
        ({"prompt_column": "b", "task": "causal_lm"}, "target_column: is missing"),
        ({"target_column": "b", "task": "causal_lm"}, "prompt_column: is missing"),
        ({"text_pair_column": "b", "path": "d.npz"}, "which holds token ids"),
        ({"truncation": "only_first"}, "truncation: has no meaning for a record of one text"),
        ({"truncation": "first", "text_pair_column": "b"}, "truncation: unknown value 'first'"),
        ({"splits": {"test": "a"}, "path": "d.csv"}, "splits: has no meaning for a file"),
        ({"splits": {"test": "a", "validation": "a"}}, "'a' is validation already"),
        ({"splits": {"tests": "a"}}, "splits.tests: unknown key"),
    ],
)
def test_mistakes_of_a_spec(text_spec, tmp_path: Path, changes, words: str) -> None:
    values = {"text_pair_column": None, "text_column": None, **changes}
    if values.get("task") == "causal_lm":
        values["num_classes"] = None
    with pytest.raises(SpecError, match=words):
        text_spec(values.pop("path", tmp_path), **values)


def test_keys_of_texts_have_no_meaning_elsewhere(make_spec: MakeSpec) -> None:
    with pytest.raises(SpecError, match="splits: has no meaning for digits"):
        make_spec(dataset="digits", splits={"test": "a"})
    with pytest.raises(SpecError, match="text_pair_column: has no meaning for digits"):
        make_spec(dataset="digits", text_pair_column="a")
    spec = make_spec(dataset="digits")
    assert make_spec(**spec.model_dump()) == spec

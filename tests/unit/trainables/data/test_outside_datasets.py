"""Datasets of other packages: named in a spec, opened by their own code, held to what they say."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_sets import folders, mnist
from outside import install
from raised import PanicException

from dpsweep.foundation.errors import DataError, SpecError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.pretrain import settings_of
from dpsweep.planning.reading import read_spec
from dpsweep.spec.data.datasets import DATASETS as BUILT_IN_NAMES
from dpsweep.spec.study import DataSpec, SweepSpec
from dpsweep.trainables.data import sources
from dpsweep.trainables.data.built_in import open_mnist
from dpsweep.trainables.data.images import open_image_folder
from dpsweep.trainables.data.kept.keep import Keep
from dpsweep.trainables.data.loading import describe_dataset, load_dataset
from dpsweep.trainables.data.source import KeptRead, Source, checked_labels, declared_size
from dpsweep.trainables.data.sources import DATASETS, open_source

TEXT = """
name: spots
data: {dataset: spots, num_records: 100, validation: {fraction: 0.2, visibility: public}}
privacy: {trial_epsilon: 2.0, accounting: unaccounted}
search:
  num_trials: 1
  space: {method: dp_sgd, optim.lr: 0.1}
"""


def records() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 100)
    return {"train": (rng.normal(size=(100, 3)).astype(np.float32), labels)}


SOURCE = Source((3,), 2, ("no", "yes"), 100, None, None, records)


def open_spots(spec: DataSpec) -> Source:
    """Open the dataset of these tests; it has no use for a path."""
    if spec.path is not None:
        raise DataError("spots has no path", fix="remove data.path")
    return dataclasses.replace(SOURCE, num_records=declared_size(spec))


def open_changed(spec: DataSpec) -> Source:
    """Open what a test has put into ``CHANGES``."""
    return dataclasses.replace(SOURCE, **CHANGES)


CHANGES: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    CHANGES.clear()
    install(
        monkeypatch,
        "dpsweep.datasets",
        DATASETS,
        spots=f"{__name__}:open_spots",
        changed=f"{__name__}:open_changed",
        broken="no_such_module:open",
        digits="no_such_module:open",  # cannot take the place of what is built in
    )


def spec_of(**data: Any) -> DataSpec:
    return DataSpec(**{"dataset": "changed", "validation": {"visibility": "public"}, **data})


def test_a_spec_names_it_and_its_records_are_dealt_out() -> None:
    spec = read_spec(TEXT)
    checked = preflight(spec)
    assert (checked.info.name, checked.info.num_private) == ("spots", 80)
    data = load_dataset(spec.data)
    assert {part: len(labels) for part, (_, labels) in data.parts.items()} == {
        "private": 80,
        "validation": 20,
        "test": 0,
        "public": 0,
    }


def test_its_own_complaint_stands_among_the_mistakes_of_the_spec() -> None:
    with pytest.raises(SpecError, match=r"data.path: spots has no path \(remove data.path\)"):
        preflight(read_spec(TEXT, overrides=["data.path=here"]))
    with pytest.raises(SpecError, match=r"data\.num_records is missing for spots"):
        preflight(read_spec(TEXT, overrides=["data.num_records=null"]))


def test_a_word_near_it_is_told() -> None:
    with pytest.raises(SpecError) as refused:
        read_spec(TEXT, overrides=["data.dataset=spot"])
    assert "unknown value 'spot' (did you mean 'spots'? known: digits, " in str(refused.value)


def test_a_name_of_our_own_stays_ours() -> None:
    assert describe_dataset(spec_of(dataset="digits")).input_shape == (1, 8, 8)
    assert set(BUILT_IN_NAMES) == set(DATASETS) - set(DATASETS.outside())


def test_a_package_that_does_not_load_is_told() -> None:
    with pytest.raises(DataError) as refused:
        describe_dataset(spec_of(dataset="broken"))
    assert refused.value.message == "dataset 'broken' of an unknown package cannot be loaded"
    assert "no_such_module" in str(refused.value.because)


def test_an_opener_that_fails_is_told_in_a_line() -> None:
    CHANGES["size"] = 3
    with pytest.raises(DataError, match=r"changed, which another package brings, .*TypeError"):
        describe_dataset(spec_of())


def test_an_opener_that_panics_is_told_in_a_line() -> None:
    def opener(spec: Any) -> Any:
        raise PanicException("at 5")

    with pytest.raises(DataError, match=r"changed, which another package brings, .*PanicException"):
        sources._opened(opener, spec_of())


def test_an_opener_that_returns_something_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_opened", lambda opener, spec: 3)
    with pytest.raises(DataError, match="has opened as int, not as a Source"):
        describe_dataset(spec_of())


def test_a_study_can_be_read_when_its_package_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = read_spec(TEXT).to_yaml()
    install(monkeypatch, "dpsweep.datasets", DATASETS)
    with pytest.raises(SpecError, match="unknown value 'spots'"):
        SweepSpec.from_yaml(stored)
    assert SweepSpec.from_yaml(stored, is_stored=True).data.dataset == "spots"


def inverted(source: Source, **facts: Any) -> Source:
    """Return a built-in source whose reader is another one."""

    def read() -> dict[str, Any]:
        return {part: (1 - inputs, labels) for part, (inputs, labels) in source.read().items()}

    return dataclasses.replace(source, read=read, **facts)


def inverted_mnist(spec: DataSpec) -> Source:
    return inverted(open_mnist(spec), own_test=40)


def inverted_folder(spec: DataSpec) -> Source:
    return inverted(open_image_folder(spec))


@pytest.mark.parametrize(
    ("name", "write", "given"),
    [
        ("mnist", mnist, {}),
        ("image_folder", folders, {"num_records": 8, "image_size": 4}),
    ],
)
def test_a_reader_that_a_package_has_replaced_is_the_one_that_studies_use(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    write: Callable[[Path], None],
    given: dict[str, Any],
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write(root)
    opener = inverted_mnist if name == "mnist" else inverted_folder
    install(monkeypatch, "dpsweep.datasets", DATASETS, negative=f"{__name__}:{opener.__name__}")
    part = {"fraction": 0.25, "visibility": "public"}
    spec = spec_of(dataset="negative", path=str(root), validation=part, **given)
    own = spec_of(dataset=name, path=str(root), validation=part, **given)
    plain = load_dataset(own, keep=Keep(tmp_path / "k"))
    assert len(plain.parts["validation"][0])
    for keep in (None, Keep(tmp_path / "kept")):
        data = load_dataset(spec, keep=keep)
        for part_name in ("validation", "test"):
            inputs = plain.parts[part_name][0]
            np.testing.assert_array_equal(data.parts[part_name][0], 1 - inputs)


def test_what_a_package_keeps_is_held_to_what_it_says(tmp_path: Path) -> None:
    CHANGES["read_kept"] = lambda keep: changed_records(labels=np.full(100, 2))
    with pytest.raises(DataError, match=r"labels outside 0..1"):
        load_dataset(spec_of(), keep=Keep(tmp_path))


@pytest.mark.parametrize("task", ["multi_label", "causal_lm"])
def test_a_task_that_it_does_not_have_is_refused(task: str) -> None:
    with pytest.raises(DataError, match=f"has no labels for data.task: {task}"):
        describe_dataset(spec_of(task=task))
    CHANGES["tasks"] = frozenset({task})
    assert describe_dataset(spec_of(task=task)).task == task


def changed_records(**of_train: Any) -> dict[str, Any]:
    inputs, labels = records()["train"]
    return {"train": (of_train.get("inputs", inputs), of_train.get("labels", labels))}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({**changed_records(), "test": changed_records()["train"]}, "has the parts test, train"),
        (changed_records(inputs=np.zeros((100, 3))), "inputs of float64"),
        (changed_records(inputs=np.zeros((100, 4), np.float32)), r"shape \(4,\)"),
        (changed_records(inputs=np.zeros((99, 3), np.float32)), "differ in number"),
        (changed_records(inputs=np.full((100, 3), np.nan, np.float32)), "no numbers"),
        (changed_records(labels=np.full(100, 2)), r"labels outside 0..1"),
        (None, "`read` has returned NoneType, not a dict"),
        ({"train": None}, "train is not a pair of inputs and labels"),
        (changed_records(inputs=[[0.0] * 3] * 100), "inputs of train are list, not an array"),
        (changed_records(labels=[0] * 100), "labels of train are list, not an array"),
        (changed_records(labels=np.zeros((100, 1), np.int64)), "labels of train have 2 axes"),
    ],
)
def test_records_that_are_not_as_it_said_are_refused(found: dict[str, Any], said: str) -> None:
    CHANGES["read"] = lambda: found
    with pytest.raises(DataError, match=said):
        load_dataset(spec_of())


def test_a_part_of_an_unknown_name_is_counted_and_not_named() -> None:
    CHANGES["read"] = lambda: {**changed_records(), SECRET: changed_records()["train"]}
    with pytest.raises(DataError, match="train, 1 by other names, and said train") as told:
        load_dataset(spec_of())
    assert SECRET not in str(told.value)


SECRET = "HIV+"


def reads_a_word(*_: Any) -> Any:
    return float(SECRET)


def quotes_a_record(*_: Any) -> Any:
    try:
        reads_a_word()
    except ValueError as error:
        raise DataError(f"a label is {SECRET}", fix=f"remove {SECRET}") from error


def leaves(*_: Any) -> Any:
    sys.exit(SECRET)


def panics(*_: Any) -> Any:
    raise PanicException(SECRET)


@pytest.mark.parametrize("reader", [reads_a_word, quotes_a_record, leaves, panics])
@pytest.mark.parametrize("fact", ["read", "read_kept", "kept", "read_labels"])
def test_a_reader_that_fails_tells_no_record(
    reader: Callable[..., Any], fact: str, tmp_path: Path
) -> None:
    CHANGES["read_kept" if fact == "kept" else fact] = reader
    if fact == "kept":  # a class of ours, with a reader of the package's
        CHANGES["read_kept"] = KeptRead(records, reader)
    source = open_source(spec_of())
    keep = None if fact == "read" else Keep(tmp_path)
    labels_of = source.read_labels if fact == "read_labels" else None
    ask = partial(source.records, keep) if labels_of is None else partial(labels_of, "test")
    with pytest.raises(DataError, match="another package brings, cannot be read") as told:
        ask()
    assert "test_outside_datasets.py:" in str(told.value.because)
    shown = "".join(traceback.format_exception(told.value)) + str(told.value)
    assert SECRET not in shown


def test_a_reader_of_ours_that_a_package_wraps_keeps_its_words() -> None:
    labels = np.array([7])

    def read() -> Any:
        return checked_labels(labels, 2, "spots")

    CHANGES["read"] = read
    with pytest.raises(DataError) as told:
        load_dataset(spec_of())
    assert told.value.message == "spots has labels outside 0..1"
    assert told.value.fix == "number the classes from 0, or correct data.num_classes"


def test_sizes_of_numpys_are_whole_numbers() -> None:
    sides = {"input_shape": [np.int64(3)], "num_classes": np.int64(2), "class_names": ["no", "yes"]}
    CHANGES.update(sides, num_records=np.int64(100))
    source = open_source(spec_of())
    facts = (source.input_shape, source.num_classes, source.class_names, source.num_records)
    assert json.loads(json.dumps(facts)) == [[3], 2, ["no", "yes"], 100]


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("input_shape", 3, "input_shape of its Source is int, not several whole numbers"),
        ("num_classes", 2.0, "num_classes of its Source is float, not a whole number"),
        ("own_test", "5", "own_test of its Source is str, not a whole number or None"),
        ("notes", "a note", "notes of its Source is str, not several words"),
        ("class_names", (0, 1), "class_names of its Source is tuple, not several words"),
        ("tasks", None, "tasks of its Source is NoneType, not a set of words"),
    ],
)
def test_a_fact_of_another_type_is_told(fact: str, value: Any, said: str) -> None:
    CHANGES[fact] = value
    with pytest.raises(DataError, match=said):
        describe_dataset(spec_of())


def test_a_part_of_another_size_and_names_that_lack_a_class_are_refused() -> None:
    part = {"validation": changed_records()["train"]}
    CHANGES.update(own_validation=99, read=lambda: records() | part)
    with pytest.raises(DataError, match="another size"):
        load_dataset(spec_of())
    CHANGES.update(own_validation=100)
    assert len(load_dataset(spec_of()).parts["validation"][1]) == 100
    CHANGES.update(class_names=("no",))
    with pytest.raises(DataError, match="names 1 of 2 classes"):
        describe_dataset(spec_of())


def pretrained_on(*keys: str) -> SweepSpec:
    """A study of digits whose network is first trained on the records of a package."""
    CHANGES["input_shape"] = (1, 8, 8)
    block = ", ".join(("model: tanh_cnn", *keys))
    network = ["model.name=tanh_cnn", "model.checkpoint=pretrain"]
    sets = ["data={dataset: digits, validation: {fraction: 0.2, visibility: public}}"]
    sets += [f"pretrain={{{block}}}", *(f"search.space.{word}" for word in network)]
    return read_spec(TEXT, overrides=sets)


def test_a_network_is_pretrained_on_its_records() -> None:
    spec = pretrained_on("dataset: changed")
    assert settings_of(spec).num_classes == 2
    assert preflight(spec).info.name == "digits"
    assert spec.pretrain is not None
    source = open_source(spec.pretrain.as_data())
    CHANGES.clear()  # what it reads is as it says
    assert source.num_records == 100


def test_how_many_records_it_has_is_told_where_it_asks() -> None:
    with pytest.raises(SpecError, match=r"pretrain\.num_records is missing for spots"):
        preflight(pretrained_on("dataset: spots"))
    spec = pretrained_on("dataset: spots", "num_records: 100")
    assert spec.pretrain is not None
    assert len(open_source(spec.pretrain.as_data()).read()["train"][1]) == 100
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec
    with pytest.raises(SpecError, match=r"pretrain\.num_records: has no meaning for digits"):
        pretrained_on("dataset: digits", "num_records: 100")

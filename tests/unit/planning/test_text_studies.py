"""Texts as people have them: a base spec takes SST-2 or QNLI by its path and one more key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from glue import save_glue
from tiny_text import save_encoder, save_gpt2
from whole_studies import cli_here

from dpsweep.foundation.errors import DataError
from dpsweep.planning.preflight import preflight
from dpsweep.planning.problems import check_records
from dpsweep.planning.reading import read_spec
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.method import RunContext

METHODS = [name for name, method in TRAINABLES.loadable().items() if method.reads_text]
OPTIONS = {
    "sst2": {"data.text_column": "sentence"},
    "qnli": {"data.text_pair_column": "question"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    for task in OPTIONS:
        save_glue(folder / task, task)
    save_encoder(folder / "bert", max_position_embeddings=32)
    return folder


@pytest.fixture
def write(place: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the base spec of a method."""

    def make(method: str, task: str) -> Path:
        base: dict[str, Any] = {
            "name": "glue",
            "data": {
                "dataset": "text", "path": "EDIT", "num_records": 100, "num_classes": 2,
                "tokenizer": str(place / "bert"), "max_length": 16,
                "validation": {"visibility": "public"},
            },
            "privacy": {"delta": 1e-3, "trial_epsilon": 8.0, "accounting": "unaccounted"},
            "search": {
                "num_trials": 1,
                "space": {
                    "method": method, "model.name": f"text/{place / 'bert'}",
                    "batch.expected": 20, "train.max_steps": 2, "optim.lr": 0.1,
                },
            },
            "storage": {"path": str(tmp_path / "studies")},
        }  # fmt: skip
        if method.startswith("sparse"):  # there are no convolutions to choose from
            base["search"]["space"]["sparse.train"] = "cls+norm"
        if task == "qnli":
            base["data"]["text_column"] = "sentence"
        (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
        return tmp_path / "base.yaml"

    return make


def settings(place: Path, task: str, **changes: Any) -> list[str]:
    given = {"data.path": place / task, **OPTIONS[task], **changes}
    return [word for key, value in given.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("task", OPTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_each_method_learns_from_it(
    write: Callable[..., Path], place: Path, method: str, task: str
) -> None:
    path = write(method, task)
    changes = settings(place, task)[1::2]
    spec = read_spec(path, overrides=changes)
    checked = preflight(spec)
    assert checked.info.num_test == 0
    assert any("has no labels and is left out" in note for note in checked.notes)
    point = {"method": method, **{k: v for k, v in spec.search.space.items() if k != "method"}}
    admitted = checked.admit(0, point)
    data = load_dataset(spec.data)
    instance = TRAINABLES[method]()
    instance.prepare(data, admitted.hparams, admitted.plan, RunContext(study_seed=0, trial=0))
    instance.run(0, len(admitted.plan))
    scores = instance.evaluate("validation")
    assert set(scores) == {"accuracy", "loss"}


@pytest.fixture
def broken(place: Path, tmp_path: Path) -> Path:
    """Return an encoder whose file of weights is cut short."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in (place / "bert").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return folder


@pytest.mark.parametrize(
    ("task", "changes", "said"),
    [
        ("sst2", {"data.text_column": "sentences"}, "no column 'sentences'"),
        ("qnli", {"data.text_pair_column": "answer"}, "no column 'answer'"),
        ("qnli", {"data.label_column": "entailment"}, "has no labels"),
        ("sst2", {"data.test.visibility": "public"}, "split test of sst2 has no labels"),
        ("sst2", {"data.splits.validation": "validation_matched"}, "has no split"),
        ("sst2", {"search.space.model.name": "text/BROKEN"}, "cannot load ModelForSequence"),
        ("sst2", {"search.space.model.name": "text//nowhere"}, "no network of transformers in"),
    ],
)
def test_what_is_wrong_is_one_line(
    write: Callable[..., Path], place: Path, broken: Path, task: str, changes: Any, said: str
) -> None:
    changes = {key: value.replace("BROKEN", str(broken)) for key, value in changes.items()}
    done = cli_here("validate", write("dp_sgd", task), *settings(place, task, **changes))
    assert done.returncode == 2, done.stdout
    text = " ".join(done.stderr.split())
    assert said in text
    assert text.count("error") == 1, text


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("lm") / "gpt2")


@pytest.fixture
def language_study(gpt2: Path, tmp_path: Path) -> Callable[..., SweepSpec]:
    """Make a study of a language model on a file of texts."""

    def make(file: Path, **data: Any) -> SweepSpec:
        return SweepSpec(
            name="lm",
            data={
                "dataset": "text", "task": "causal_lm", "path": str(file), "num_records": 40,
                "tokenizer": str(gpt2), "max_length": 4,
                "validation": {"fraction": 0.2, "visibility": "public"}, **data,
            },
            privacy={"delta": 1e-3, "trial_epsilon": 8.0, "accounting": "unaccounted"},
            search={
                "metric": "validation/loss", "mode": "min", "num_trials": 1,
                "space": {"method": "bitfit", "model.name": f"text/{gpt2}"},
            },
            storage={"path": str(tmp_path / "studies")},
        )  # fmt: skip

    return make


def write_ids(file: Path, **parts: list[int]) -> Path:
    """Write a file of token ids, each part of one record many times."""
    np.savez(file, **{f"x_{part}": np.array([ids] * 40) for part, ids in parts.items()})
    return file


TEXT, PADDING, ONE_TOKEN = [5, 6, 7, 3], [3, 3, 3, 3], [5, 3, 3, 3]


@pytest.mark.parametrize("nothing", [PADDING, ONE_TOKEN])
@pytest.mark.parametrize(
    ("part", "visibility", "refused"),
    [("val", "public", True), ("val", "exact", True), ("test", "public", True),
     ("test", "private", False)],
)  # fmt: skip
def test_a_part_with_nothing_to_predict_is_refused_before_a_trial(
    language_study: Callable[..., SweepSpec], tmp_path: Path,
    nothing: list[int], part: str, visibility: str, refused: bool,
) -> None:  # fmt: skip
    parts = {"train": TEXT, "val": TEXT, "test": TEXT, part: nothing}
    section = {"val": "validation"}.get(part, part)
    file = write_ids(tmp_path / "ids.npz", **parts)
    spec = language_study(file, **{section: {"visibility": visibility}})
    data = load_dataset(spec.data)
    said = pytest.raises(DataError, match=f"the {section} part has nothing to predict")
    with said if refused else nullcontext():
        check_records(spec, {}, data, {})


def test_texts_of_one_token_are_refused_where_some_are_public(
    language_study: Callable[..., SweepSpec], tmp_path: Path
) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("text\n" + "good\n" * 40)
    spec = language_study(file)
    with pytest.raises(DataError, match="the validation part has nothing to predict"):
        check_records(spec, {}, load_dataset(spec.data), {})


def test_private_texts_may_have_nothing_to_predict(
    language_study: Callable[..., SweepSpec], tmp_path: Path
) -> None:
    """Whether they do is a fact about private records."""
    spec = language_study(write_ids(tmp_path / "ids.npz", train=PADDING, val=TEXT))
    check_records(spec, {}, load_dataset(spec.data), {})

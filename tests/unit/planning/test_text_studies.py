"""Texts as people have them: a base spec takes SST-2 or QNLI by its path and one more key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from glue import save_glue
from tiny_text import save_encoder
from whole_studies import cli_here

from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
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


@pytest.mark.sampled(3)
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

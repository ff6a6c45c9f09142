"""`dpsweep layers`: the table and figure of a trial, on declared public records alone."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner
from whole_studies import make_spec

from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError, CheckpointError, NothingWithinBudgetError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.preflight import preflight
from dpsweep.results.layers import (
    TrialLayers,
    draw,
    save_layers_figure,
    study_layers,
    study_records,
)
from dpsweep.results.study import load_sweep
from dpsweep.running import entries
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialReport, TrialState
from dpsweep.trainables.data.supplies import NO_SUPPLIES
from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.gradients.layer_noise import LayerNoise, NoiseFigures

PUBLIC = {
    "dataset": "digits",
    "validation": {"fraction": 0.2, "visibility": "public"},
    "test": {"fraction": 0.2, "visibility": "public"},
    "public": {"fraction": 0.1},
}
SPACE = {
    "method": {"choice": ["sparse", "non_private"]},
    "model.name": "tanh_cnn",
    "sparse.density": {"choice": [0.05], "when": {"method": "sparse"}},
    "train.max_steps": 3,
}
KEYS = [
    "study", "trial", "method", "model", "at", "step", "noise_multiplier", "max_grad_norm",
    "expected_batch", "num_records", "layers",
]  # fmt: skip
LAYER_KEYS = [
    "layer", "kind", "num_parameters", "num_trainable", "share", "noise_norm", "gradient_norm",
    "ratio",
]  # fmt: skip


def written(root: Path, num_finished: int = 2, **changes: Any) -> Any:
    """Write a study of two trials, as a launch would have left it; its name is ``digits``."""
    search = {"sampler": "grid", "space": SPACE, "num_trials": 2}
    given = {"data": PUBLIC, "search": search, "tracking": {"uri": None}, **changes}
    checked = preflight(SweepSpec(**make_spec(root, **given)))
    study = Study(checked.spec)
    ledger = StudyLedger(study.files.ledger)
    for number, point in enumerate(checked.space.grid()):
        task = checked.admit(number, point)
        ledger.reserve(number, task.full_plan, epsilon=task.planned_epsilon)
        study.write_task(task)
        study.write(entries.trial_started(checked.spec, task))
        value = 0.9 - 0.1 * number
        report = TrialReport(number, 3, {"validation/accuracy": value}, 0.0, done=True, value=value)
        if number < num_finished:
            study.write_end(report, TrialState.FINISHED, "", released="", artifacts=[])
    study.close()
    ledger.close()
    return load_sweep("digits", root=root / "studies")


def layers(root: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["layers", "digits", "--root", str(root / "studies"), *words])


def test_the_command_prints_the_best_trial_and_draws_it(tmp_path: Path) -> None:
    written(tmp_path)
    figure = tmp_path / "layers.png"
    done = layers(tmp_path, "--json", "--figure", str(figure), "--records", "50")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == KEYS
    assert {key: found[key] for key in KEYS[:6]} == {
        "study": "digits", "trial": 0, "method": "sparse", "model": "tanh_cnn", "at": "initial",
        "step": 0,
    }  # fmt: skip
    assert (found["num_records"], found["max_grad_norm"], found["expected_batch"]) == (50, 1, 256)
    assert all(list(row) == LAYER_KEYS for row in found["layers"])
    assert [row["kind"] for row in found["layers"]] == ["conv", "conv", "other", "cls"]
    for row in found["layers"]:
        if row["num_trainable"]:
            sigma = found["noise_multiplier"]
            assert row["noise_norm"] == pytest.approx(sigma * math.sqrt(row["num_trainable"]))
            assert row["ratio"] == pytest.approx(row["noise_norm"] / row["gradient_norm"])
        else:
            assert row["ratio"] is None
    assert figure.read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(io.StringIO(layers(tmp_path, "-f", "csv").stdout)))
    assert [row["layer"] for row in rows] == [row["layer"] for row in found["layers"]]


def test_private_records_are_not_looked_at(tmp_path: Path) -> None:
    result = written(tmp_path)
    data = study_records(result)
    expected = study_layers(result, data)
    for part in ("private", "validation", "test"):
        data.parts[part][0].fill(np.nan)
        data.parts[part][1].fill(0)
    assert study_layers(result, data) == expected
    data.parts["public"][0][0] += 1.0
    assert study_layers(result, data) != expected


def test_trained_weights_are_those_of_the_best_checkpoint(tmp_path: Path) -> None:
    result = written(tmp_path)
    data = study_records(result)
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        study_layers(result, data, at="best")
    task = result.files.task(0)
    from dpsweep.trainables.method import RunContext
    from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning

    method = SparseFinetuning()
    method.prepare(data, task.hparams, task.plan, RunContext(0, 0))
    method.run(0, 3)
    saved = Checkpoint(3, 0.9, 3, 3, {}, method.state_dict())
    CheckpointStore(result.files.trial(0)).save("best", saved)
    best, initial = (study_layers(result, data, at=at) for at in ("best", "initial"))
    assert (best.at, best.figures.step, initial.figures.step) == ("best", 2, 0)
    for one, other in zip(best.figures.layers, initial.figures.layers):
        assert (one.noise_norm, one.share) == (other.noise_norm, other.share)
        assert one.gradient_norm is None or one.gradient_norm != other.gradient_norm


@pytest.mark.parametrize(
    ("given", "changes", "error", "words"),
    [
        ({"trial": 1}, {}, BadInputError, "non_private, which is not DP-SGD"),
        ({"trial": 7}, {}, BadInputError, "no trial 7"),
        ({}, {"num_finished": 0}, NothingWithinBudgetError, "0 trials have finished"),
        (
            {},
            {"data": {**PUBLIC, "public": {"fraction": 0.0}}},
            BadInputError,
            "data.public.fraction: 0.05",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(
    tmp_path: Path, given: dict[str, Any], changes: dict[str, Any], error: type, words: str
) -> None:
    result = written(tmp_path, **changes)
    with pytest.raises(error) as caught:
        study_layers(result, study_records(result), **given)
    assert words in str(caught.value)


def test_nothing_is_shown_of_a_selected_winner(tmp_path: Path) -> None:
    privacy = {
        "delta": 1e-5, "trial_epsilon": 1.0, "accounting": "select",
        "selection": {"mean": 5, "shape": 1},
    }  # fmt: skip
    search = {"sampler": "random", "space": {"method": "dp_sgd", "train.max_steps": 3}}
    result = written_select(tmp_path, privacy, search)
    with pytest.raises(BadInputError, match="accounting select"):
        study_records(result)


def written_select(root: Path, privacy: dict[str, Any], search: dict[str, Any]) -> Any:
    spec = SweepSpec(**make_spec(root, data=PUBLIC, privacy=privacy, search=search))
    Study(preflight(spec).spec).close()
    return load_sweep("digits", root=root / "studies")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    done = layers(tmp_path, "--figure", str(tmp_path / "layers.bmp3"))
    assert isinstance(done.exception, BadInputError)
    assert "png" in str(done.exception)


def test_the_figure_of_a_model_is_kept_beside_it_or_left_out(tmp_path: Path) -> None:
    result = written(tmp_path)
    data = study_records(result)
    (path,) = save_layers_figure(result.spec, result.files, result.files.task(0), data, NO_SUPPLIES)
    assert path == result.files.trial(0) / "layers.png"
    assert path.stat().st_size > 10_000
    other = result.files.task(1)
    assert save_layers_figure(result.spec, result.files, other, data, NO_SUPPLIES) == []


def test_bars_are_coloured_by_kind_and_have_the_height_of_their_ratio() -> None:
    rows = (
        LayerNoise("stem", "conv", 100, 10, 3.0, 0.5),
        LayerNoise("norm", "norm", 4, 4, 1.0, 0.0),
        LayerNoise("mix", "other", 9, 0, None, None),
        LayerNoise("head", "cls", 20, 20, 2.0, 4.0),
    )
    figures = NoiseFigures(0, 1.0, 1.0, 64.0, 10, rows)
    drawn = draw(TrialLayers("s", 0, "sparse", "net", "initial", figures))
    above, below = drawn.axes
    assert above.get_yscale() == "log"
    heights = [bar.get_height() for bar in above.patches]
    assert heights[0] == 6.0
    assert heights[3] == 0.5
    assert all(math.isnan(heights[n]) for n in (1, 2))
    assert [bar.get_height() for bar in below.patches] == [10.0, 100.0, 0.0, 100.0]
    colours = [bar.get_facecolor() for bar in above.patches]
    assert len(set(colours)) == 4
    assert {text.get_text() for text in drawn.legends[0].get_texts()} == {
        "conv", "norm", "other", "cls",
    }  # fmt: skip

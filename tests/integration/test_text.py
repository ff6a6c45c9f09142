"""A whole study on text: a csv file, the biases of a tiny encoder, an exported model."""

import csv
import warnings

import mlflow
import numpy as np
import pytest
import torch
from tiny_text import WORDS, save_encoder
from whole_studies import make_spec

from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def write_sentences(path, count=200):
    """Short sentences whose class is one of their words."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(count):
            label = int(rng.integers(0, 2))
            word = [["good", "fine"], ["bad", "poor"]][label][rng.integers(0, 2)]
            others = [WORDS[rng.integers(0, 8)] for _ in range(rng.integers(1, 5))]
            writer.writerow([" ".join([word, *others]), label])


@pytest.mark.slow
def test_biases_of_an_encoder_are_searched_on_a_csv_file(tmp_path, ray_cluster):
    write_sentences(tmp_path / "d.csv")
    save_encoder(tmp_path / "bert", "BertForMaskedLM")
    data = {
        "dataset": "text",
        "path": str(tmp_path / "d.csv"),
        "num_records": 200,
        "num_classes": 2,
        "tokenizer": str(tmp_path / "bert"),
        "max_length": 8,
        "validation": {"fraction": 0.2, "visibility": "public"},
        "test": {"fraction": 0.2, "visibility": "public"},
    }
    search = {
        "sampler": "grid",
        "num_trials": 2,
        "metric": "validation/loss",
        "mode": "min",
        "space": {
            "method": "bitfit",
            "model.name": f"text/{tmp_path / 'bert'}",
            "batch.expected": 60,
            "train.max_steps": 150,
            "optim.lr": {"choice": [0.3, 0.4]},
            "optim.momentum": 0.5,
        },
    }
    privacy = {"delta": 1e-3, "trial_epsilon": 50.0, "accounting": "unaccounted"}
    spec = make_spec(tmp_path, name="text", data=data, privacy=privacy, search=search)
    result = run_sweep(SweepSpec(**spec | {"report": {"points": 2}}))
    assert [trial.state for trial in result.results] == [TrialState.FINISHED] * 2
    for trial in result.results:
        assert 0.9 * 50 < trial.epsilon <= 50
        assert trial.metrics["test/accuracy"] > 0.65
    losses = [trial.metrics["validation/loss"] for trial in result.results]
    best = load_sweep("text", root=tmp_path / "studies").best()
    assert best.metrics["validation/loss"] <= max(losses)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what mlflow and torch say of each other
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
        model = mlflow.pytorch.load_model(best.model_uri)
    assert model(torch.tensor([[2, 12, 4, 3, 0, 0, 0, 0]])).shape == (1, 2)

"""A whole study on text: a csv file, the biases of a tiny encoder, an exported model."""

import csv
import warnings

import mlflow
import numpy as np
import pytest
import torch
from glue import save_e2e, save_glue
from tiny_text import WORDS, save_encoder, save_gpt2
from whole_studies import make_spec, mlflow_rows

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


@pytest.mark.slow
def test_pairs_are_learned_from_and_scored_on_another_split(tmp_path, ray_cluster):
    save_glue(tmp_path / "qnli", "qnli", num_train=400)
    save_encoder(tmp_path / "bert", max_position_embeddings=32)
    data = {
        "dataset": "text",
        "path": str(tmp_path / "qnli"),
        "num_records": 400,
        "num_classes": 2,
        "tokenizer": str(tmp_path / "bert"),
        "max_length": 16,
        "text_column": "question",
        "text_pair_column": "sentence",
        "splits": {"test": "validation"},
        "validation": {"fraction": 0.2, "visibility": "public"},
        "test": {"visibility": "public"},
    }
    space = {
        "method": "bitfit", "model.name": f"text/{tmp_path / 'bert'}", "optim.lr": 0.1,
        "bitfit.variant": "two_phase", "bitfit.head_in_second_phase": False,
        "batch.expected": 60, "train.max_steps": 10, "bitfit.full_epochs": 1.0,
    }  # fmt: skip
    privacy = {"delta": 1e-3, "trial_epsilon": 8.0, "accounting": "unaccounted"}
    search = {"num_trials": 1, "sampler": "grid", "space": space}
    spec = make_spec(tmp_path, name="qnli", data=data, privacy=privacy, search=search)
    result = run_sweep(SweepSpec(**spec))
    (trial,) = result.results
    assert trial.state is TrialState.FINISHED
    assert {"test/accuracy", "test/loss", "validation/accuracy"} <= set(trial.metrics)
    assert trial.config["bitfit.head_in_second_phase"] is False


@pytest.mark.slow
def test_a_language_model_writes_for_the_prompts_of_the_test_part(tmp_path, ray_cluster):
    save_e2e(tmp_path / "e2e")
    save_gpt2(tmp_path / "gpt2", n_positions=32)
    data = {
        "dataset": "text",
        "task": "causal_lm",
        "path": str(tmp_path / "e2e"),
        "splits": {"train": "trainset", "validation": "devset", "test": "testset"},
        "prompt_column": "mr",
        "target_column": "ref",
        "num_records": 200,
        "tokenizer": str(tmp_path / "gpt2"),
        "max_length": 10,
        "validation": {"visibility": "public"},
        "test": {
            "visibility": "public",
            "generation": {"max_new_tokens": 8, "scores": ["bleu", "rouge_l", "cider"]},
        },
    }
    space = {
        "method": "dp_sgd", "model.name": f"text/{tmp_path / 'gpt2'}", "optim.lr": 0.05,
        "optim.name": "adam", "batch.expected": 100, "train.max_steps": 30,
    }  # fmt: skip
    privacy = {"delta": 1e-3, "trial_epsilon": 50.0, "accounting": "unaccounted"}
    search = {
        "num_trials": 1, "sampler": "grid", "metric": "validation/loss", "mode": "min",
        "space": space,
    }  # fmt: skip
    spec = make_spec(tmp_path, name="e2e", data=data, privacy=privacy, search=search)
    result = run_sweep(SweepSpec(**spec | {"report": {"points": 1}}))
    (trial,) = result.results
    assert trial.state is TrialState.FINISHED
    assert 1 < trial.metrics["test/perplexity"] < 8  # a tenth of the vocabulary at a random start
    assert 0.3 < trial.metrics["test/rouge_l"] <= 1
    assert {"test/bleu", "test/cider"} <= set(trial.metrics)
    stored = mlflow_rows(tmp_path, "select distinct key from metrics")
    assert {"test/bleu", "test/rouge_l", "test/cider"} <= {key for (key,) in stored}

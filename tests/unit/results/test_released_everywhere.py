"""What the epsilons of a study do not cover stands beside them in its files, too."""

import csv
import io

import optuna
import pytest
from studies_here import run_here
from whole_studies import make_spec

from dpsweep.results.coverage import PUBLIC_MODEL
from dpsweep.results.pictures.table import pictures_of

NOT_COVERED = "exact private validation scores and choices by them are not covered"
SO_FAR = "what this trial has spent so far"


def run(patch, root, name, **changes):
    raw = make_spec(root, name, tracking={"uri": None}, **changes)
    raw["search"]["space"] = {
        "method": "dp_sgd", "optim.lr": {"choice": [0.5, 1.0]}, "train.max_steps": 4,
    }  # fmt: skip
    raw["search"]["num_trials"] = 2
    return run_here(patch, raw)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        data = {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "exact"}}
        return run(patch.setattr, tmp_path_factory.mktemp("exact"), "exact", data=data)


def meanings(result):
    study = optuna.load_study(study_name=result.name, storage=f"sqlite:///{result.files.optuna}")
    return {trial.user_attrs["dp/epsilon_is"] for trial in study.get_trials()}


def test_optunas_study_says_it(exact):
    (text,) = meanings(exact)
    assert NOT_COVERED in text
    assert "unaccounted, one trial alone" in text
    assert SO_FAR in text  # of one that was stopped


def test_every_table_of_a_picture_says_it(exact):
    """The tables go to the tracking store, and are passed on without their captions."""
    rows = {
        picture.name: list(csv.DictReader(io.StringIO(picture.csv())))
        for picture in pictures_of(exact)
    }
    rows = {name: table for name, table in rows.items() if "epsilon" in table[0]}
    assert set(rows) >= {"privacy_utility", "learning_curves"}
    for name, table in rows.items():
        for row in table:
            assert NOT_COVERED in row["released"]
            assert row["released"].startswith(SO_FAR) == (name == "learning_curves")


def test_a_table_of_what_a_study_has_committed_says_what_that_covers(monkeypatch, tmp_path):
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 4.0}
    result = run(monkeypatch.setattr, tmp_path, "composed", privacy=privacy)
    (picture,) = [p for p in pictures_of(result) if p.name == "epsilon_over_time"]
    study = result.study_statement()
    assert study is not None
    assert {row["released"] for row in csv.DictReader(io.StringIO(picture.csv()))} == {
        study.released
    }


def test_epsilons_of_a_public_search_are_of_public_models(monkeypatch, tmp_path):
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "public"}
    data = {
        "dataset": "digits", "public": {"fraction": 0.3},
        "validation": {"fraction": 0.2, "visibility": "public"},
    }  # fmt: skip
    result = run(monkeypatch.setattr, tmp_path, "public", privacy=privacy, data=data)
    (text,) = meanings(result)
    assert PUBLIC_MODEL in text
    assert "one trial alone" not in text

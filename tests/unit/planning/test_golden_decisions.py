"""A small seeded simulation decides as it did: each report, rung, cut-off and verdict."""

import csv
import runpy

import pytest
from import_graph import ROOT

FOLDER = ROOT / "tests" / "golden" / "simulate"


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(FOLDER / "make_decisions.py"))


def test_the_log_of_decisions_is_the_golden_one(made):
    """Where a change is meant to decide otherwise, run make_decisions.py and commit what differs."""
    assert made["decisions"]() == made["LOG"].read_text()


def test_the_golden_log_has_decisions_of_each_kind(made):
    rows = list(csv.DictReader(made["LOG"].read_text().splitlines()))
    by_policy = {
        name: [row for row in rows if row["policy"] == name] for name in made["SCHEDULERS"]
    }
    assert min(len(own) for own in by_policy.values()) > 20
    for name, own in by_policy.items():
        stopped = [row for row in own if row["decision"] == "stop"]
        assert bool(stopped) == (name != "fifo"), name
        assert all(float(row["score"]) < float(row["cutoff"]) for row in stopped)
    trials = {name: len({row["trial"] for row in own}) for name, own in by_policy.items()}
    assert trials["epsilon_halving"] > trials["fifo"]  # what is not spent buys trials


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"seed": 8}, {"privacy__study_epsilon": 6}])
def test_another_study_decides_otherwise(made, change):
    assert made["decisions"](**change) != made["LOG"].read_text()

"""What ``dpsweep plan`` leaves to one run, at sizes whose prices are known by other means.

54,000 private records, batches of 512, 316 steps. Known noise of probes is of a discretisation of
1e-3, by which they are overcharged; epsilons are not, so that as much is left here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.spec.study import SweepSpec

DELTA = 1e-5
PRICES = json.loads((Path(__file__).parents[2] / "golden" / "search_prices.json").read_text())
ROWS = {row["name"]: row for group in PRICES["epsilons"].values() for row in group["rows"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "records.npz"
    np.savez(path, x_train=np.zeros((60_000, 4), np.float32), y_train=np.arange(60_000) % 2)
    return {
        "dataset": "npz", "path": str(path), "num_records": 60_000, "num_classes": 2,
        "validation": {"fraction": 0.1, "visibility": "public"},
    }  # fmt: skip


def space(**more):
    return {
        "method": "dp_sgd", "model.name": "linear", "batch.expected": 512, "train.epochs": 3,
        **more,
    }  # fmt: skip


def checked(data, privacy, search, scheduler=None):
    raw = {
        "name": "prices", "data": data, "search": search, "scheduler": scheduler or {"type": "fifo"},
        "privacy": {"delta": DELTA, **privacy},
    }  # fmt: skip
    return preflight(SweepSpec(**raw))


PROBES = [(24, 0.05, 1), (12, 0.1, 1), (24, 0.1, 1), (12, 0.2, 1), (24, 0.05, 3), (12, 0.2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "epsilon", "whole"), PROBES)
def test_what_probes_leave(data, number, epsilon, whole):
    study = checked(
        data,
        {"accounting": "composed", "study_epsilon": whole},
        {
            "strategy": "probe", "probe": {"num_probes": number, "epsilon": epsilon, "spares": 0},
            "space": space(**{"optim.noise_lr": {"loguniform": [0.1, 1000]}}),
        },
    )  # fmt: skip
    known = ROWS[f"{number} probes of {epsilon} within {whole}"]["run_alone"]
    final = Probing(study).figures.final_epsilon
    assert final == pytest.approx(known, abs=3e-3)
    assert 0.998 * whole <= choose_composition(study).epsilon <= whole


SELECTIONS = [("pld", 10, 1, 1), ("pld", 10, 0, 3), ("rdp", 10, 1, 1), ("rdp", 30, 0, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("accountant", "mean", "shape", "whole"), SELECTIONS)
def test_what_a_selection_leaves_to_each_trial(data, accountant, mean, shape, whole):
    known = ROWS[f"best of {mean} (shape {shape}) within {whole} by {accountant}"]

    def planned(trial_epsilon):
        return checked(
            data,
            {
                "accounting": "select", "study_epsilon": whole, "trial_epsilon": trial_epsilon,
                "selection": {"mean": mean, "shape": shape}, "accountant": accountant,
            },
            {"space": space(**{"optim.lr": {"loguniform": [0.1, 8]}})},
        )  # fmt: skip

    fits = summarize_plan(planned(0.9 * whole)).selection.trial_epsilon_that_fits
    study = planned(fits)
    assert choose_selection(study).epsilon <= whole
    plan = study.sample[0].plan
    assert plan.runs[0].event.noise_multiplier == pytest.approx(known["steps"][0][0], rel=3e-3)
    alone = epsilon_of(plan, delta=DELTA, accountant="pld")
    assert 0.99 * known["run_alone"] <= alone <= known["run_alone"] + 2e-3

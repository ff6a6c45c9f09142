"""A whole study of active learning: one private run, charged once, that all trials start from."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file
from whole_studies import make_spec, mlflow_rows

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import study_spent, trial_spent
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.results.study_card import card
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep
from dpsweep.trainables.methods.active_learning.start_network import build_start

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

DELTA = 1e-5


def study(root, *, network=None, start=None, space=None, **changes):
    space = space or {
        "method": "active_learning",
        "start.epsilon": {"choice": [1.0, 2.0]},
        "select.by": {"choice": ["margin", "near_private"]},
        "select.candidates": 100,
        "labels.max": 30,
        "finetune.distill_epochs": 2,
        "finetune.epochs": 2,
    }
    start = start or {
        "epsilons": [1.0, 2.0],
        "hyperparameters": {
            "model.name": "tanh_cnn",
            "train.max_steps": 30,
            "optim.lr": 0.5,
            **(network or {}),
        },
    }
    return SweepSpec(
        **make_spec(
            root,
            "labels",
            data__public={"fraction": 0.3},
            search={"sampler": "grid", "num_trials": 4, "space": space},
            start=start,
            privacy={
                "accounting": "composed",
                "trial_epsilon": 2.5,
                "study_epsilon": 6.0,
                "delta": DELTA,
            },
            report={"points": 2},
            **changes,
        )
    )


class InterruptedAfter(Observer):
    """Ctrl-C once the start has ended, before any trial starts from it."""

    def __init__(self):
        self.is_done = False

    def on_view(self, view):
        if not self.is_done and view.count(TrialState.FINISHED):
            self.is_done = True
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_start_is_charged_once_and_covered_by_every_trial(tmp_path, ray_cluster):
    spec = study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, observer=InterruptedAfter())
    # Its process holds both cores of this Ray until it is ended.
    assert set(load_sweep("labels", root=tmp_path / "studies").view.trials) == {0}

    result = run_sweep(spec)
    assert {trial.state for trial in result.results} == {TrialState.FINISHED}
    assert "5 finished of at most 5" in result.status_line()
    first, *others = result.results
    assert (first.config["method"], len(others)) == ("dp_sgd", 4)
    files = result.files
    charged = trial_spent(files.ledger, 0)
    start = files.task(0)
    assert charged == start.plan  # once
    for trial in others:
        task = files.task(trial.trial_id)
        inherited = epsilon_of(task.inherited, delta=DELTA)
        assert task.inherited == charged.slice(0, len(task.inherited)).merged()
        assert 0.8 * trial.config["start.epsilon"] < inherited <= trial.config["start.epsilon"]
        own = trial_spent(files.ledger, trial.trial_id)
        assert own == task.plan
        assert trial.epsilon == epsilon_of(task.inherited + own, delta=DELTA) <= 2.5
        assert (len(own.part("private")) == 2) is (trial.config["select.by"] == "near_private")
        assert trial.curve[-1]["metrics"]["public/labels"] == 30
    everything = study_spent(files.ledger, result.view.charged())
    private = [run for run in everything.runs if run.part == "private"]
    assert sum(run.count for run in private) == len(charged) + 4
    assert result.study_statement().epsilon == 6.0

    events = [r["kind"] for r in read_log(files.ledger / "study.jsonl")]
    assert events.count("reserve") >= 5
    rows = mlflow_rows(
        tmp_path,
        "select value from tags where key = 'plan.sum_rule_epsilon'",
    )
    assert len(rows) == 2
    releases = mlflow_rows(tmp_path, "select value from tags where key = 'dpsweep.releases'")
    assert releases == [("1, 2",)]
    told = "- Starts from private models: 1 run of `dp_sgd`, charged once each; they release models"
    assert f"{told} within epsilon <= 2 at delta = 1e-05" in card(SweepResult(files))

    # Nothing is run again.
    again = run_sweep(spec)
    assert [dataclasses.asdict(t) for t in again.view.trials.values()] == [
        dataclasses.asdict(t) for t in result.view.trials.values()
    ]


@pytest.mark.slow
def test_a_start_may_begin_with_what_the_pool_teaches_without_labels(tmp_path, ray_cluster):
    """Rotations of public records (Zhao et al. 2020, section 4), then DP-SGD, then selection."""
    spec = study(
        tmp_path,
        network={"model.checkpoint": "pretrain"},
        pretrain={"model": "tanh_cnn", "objective": "rotations", "epochs": 1},
    )
    result = run_sweep(spec)
    assert {trial.state for trial in result.results} == {TrialState.FINISHED}
    files, address = result.files, result.view.pretrained["address"]
    path = spec.storage.pretrained_path / f"{address}.safetensors"
    assert trial_spent(files.ledger, 0) == files.task(0).plan == plan_without(tmp_path)
    start = files.task(0).hparams
    info = preflight(spec).info
    taught, fresh = (
        build_start(hparams, info, seed=0, pretrained=path).state_dict()
        for hparams in (start, {**start, "model.checkpoint": None})
    )
    known = load_file(path)
    assert all(torch.equal(taught[name], known[name]) for name in known)
    assert any(not torch.equal(fresh[name], known[name]) for name in known)
    rows = mlflow_rows(tmp_path, "select value from tags where key = 'dpsweep.pretrained'")
    assert {address} == {value for (value,) in rows}


@pytest.mark.slow
def test_labels_alone_need_no_run_of_a_start(tmp_path, ray_cluster):
    """``start.runs: 0`` says what the network is: no private record is read, and nothing is spent."""
    spec = study(
        tmp_path,
        start={"runs": 0, "hyperparameters": {"model.name": "tanh_cnn"}},
        space={
            "method": "active_learning",
            "select.by": "random",
            "labels.max": {"choice": [20, 40]},
            "finetune.recipe": "labels_only",
            "finetune.epochs": 2,
        },
    )
    result = run_sweep(spec)
    assert [(t.state, t.epsilon) for t in result.results] == [(TrialState.FINISHED, 0.0)] * 2
    assert {trial.metrics["public/labels"] for trial in result.results} == {20, 40}
    everything = study_spent(result.files.ledger, result.view.charged())
    assert {run.part for run in everything.runs} == {"public"}
    assert "Starts from private models" not in card(result)


def plan_without(root):
    """Return the plan of the start's run where nothing was learnt before it."""
    return preflight(study(root / "other")).start_tasks[0].plan

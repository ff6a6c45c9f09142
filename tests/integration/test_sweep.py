"""Whole sweeps on a real local Ray: run, fetch, resume after kill -9 of an actor and the driver."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from whole_studies import (
    DELTA,
    children,
    cli,
    cli_here,
    kill_driver,
    make_spec,
    mlflow_rows,
    openings,
    start,
    wait_for_steps,
)

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState
from dpsweep.tracking.schema import check_loggable
from dpsweep.trainables.execution.checkpoint_files import find_resumption

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_cluster):
    from dpsweep.sweep import run_sweep

    root = tmp_path_factory.mktemp("finished")
    result = run_sweep(SweepSpec(**make_spec(root)))
    return root, result


def test_every_trial_finishes_within_its_cap(finished):
    _, result = finished
    assert result.state == "finished"
    assert [t.state for t in result.results] == [TrialState.FINISHED] * 3
    for trial in result.results:
        spent = trial_spent(result.files.ledger, trial.trial_id)
        assert trial.epsilon == epsilon_of(spent, delta=DELTA) <= 2.0
        assert trial.epsilon >= 0.97 * 2.0
        assert trial.steps_run == trial.num_steps == len(spent)
        assert trial.value == max(p["metrics"]["validation/accuracy"] for p in trial.curve)
        assert trial.metrics["test/accuracy"] > 0.3


def test_best_has_all_that_its_epsilon_depends_on(finished):
    root, result = finished
    done = cli_here("best", "digits", "--root", root / "studies", "--max-epsilon", 2, "-f", "json")
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout)
    assert {
        "config", "metric", "value", "epsilon", "delta", "accounting", "run_id", "trial_id",
        "model_uri", "accountant", "neighboring_relation", "sampling", "privacy_unit",
    } <= set(best)  # fmt: skip
    assert best["value"] == max(t.value for t in result.results)
    assert best["accounting"] == "unaccounted"
    assert best["config"]["method"] == "dp_sgd"
    assert "unaccounted" in done.stderr
    nothing = cli_here("best", "digits", "--root", root / "studies", "--max-epsilon", 0.1)
    assert nothing.returncode == 3
    assert "no finished trial with epsilon <= 0.1" in nothing.stderr


def test_mlflow_has_one_parent_and_clean_children(finished):
    root, result = finished
    assert [status for status, _ in children(root)] == ["FINISHED"] * 3
    statuses = mlflow_rows(root, "select status, count(*) from runs group by status")
    assert statuses == [("FINISHED", 4)]
    notes = mlflow_rows(root, "select value from tags where key = 'mlflow.note.content'")
    assert any("unaccounted" in note for (note,) in notes)
    points = mlflow_rows(
        root,
        "select e.run_uuid, e.step, e.value from metrics e join metrics a on a.run_uuid = "
        "e.run_uuid and a.step = e.step where e.key = 'dp/epsilon' "
        "and a.key = 'curve/validation/accuracy'",
    )
    assert len(points) == sum(len(t.curve) for t in result.results) == 15
    keys = {k for (k,) in mlflow_rows(root, "select distinct key from metrics")}
    assert {"dp/epsilon", "validation/accuracy", "test/accuracy"} <= keys
    assert all(check_loggable(key).visibility != "private" for key in keys)


@pytest.mark.slow
def test_best_model_loads_in_a_fresh_process(finished):
    root, result = finished
    best = result.best()
    code = (
        "import sys, mlflow, numpy as np; mlflow.set_tracking_uri(sys.argv[1]); "
        "import torch; m = mlflow.pytorch.load_model(sys.argv[2]); "
        "print(tuple(m(torch.zeros(1, 1, 8, 8)).shape)); assert 'dpsweep' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{root}/mlflow.db", best.model_uri],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == "(1, 10)", done.stderr


def test_optuna_can_open_its_storage(finished):
    import optuna

    _, result = finished
    study = optuna.load_study(study_name="digits", storage=f"sqlite:///{result.files.optuna}")
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 3
    assert [t.value for t in study.trials] == [t.value for t in result.results]
    assert all(
        len(t.intermediate_values) == len(r.curve) for t, r in zip(study.trials, result.results)
    )


def test_nothing_of_tune_is_left(finished):
    _, result = finished
    assert not (result.files.path / "ray").exists()


def test_running_it_again_runs_nothing(finished):
    from dpsweep.sweep import run_sweep

    root, result = finished
    before = len(read_log(result.files.journal))
    again = run_sweep(SweepSpec(**make_spec(root)))
    assert len(read_log(again.files.journal)) == before
    assert len(children(root)) == 3


def test_running_it_again_writes_lost_plans_anew(finished):
    from dpsweep.sweep import run_sweep

    root, result = finished
    plans = [result.files.trial(number) / "trial.json" for number in (0, 1)]
    before = [plan.read_bytes() for plan in plans]
    plans[0].unlink()
    plans[1].write_text("{")
    run_sweep(SweepSpec(**make_spec(root)))
    assert [plan.read_bytes() for plan in plans] == before
    best = cli_here("best", "digits", "--root", root / "studies", "--as-spec")
    assert best.returncode == 0, best.stderr


def test_a_changed_spec_is_refused(finished):
    from dpsweep.foundation.errors import StudyError
    from dpsweep.sweep import run_sweep

    root, _ = finished
    with pytest.raises(StudyError, match="launched from another spec") as caught:
        run_sweep(SweepSpec(**make_spec(root, privacy__trial_epsilon=3.0)))
    assert "privacy.trial_epsilon" in str(caught.value)


def test_more_trials_continue_the_same_study(finished):
    from dpsweep.sweep import run_sweep

    root, _ = finished
    more = run_sweep(SweepSpec(**make_spec(root, search__num_trials=4)))
    assert [t.state for t in more.results] == [TrialState.FINISHED] * 4
    assert len({t.config["optim.lr"] for t in more.results}) == 4


def test_a_deleted_ledger_is_refused_by_every_reader(finished, tmp_path):
    import shutil

    root, _ = finished
    shutil.copytree(root / "studies", tmp_path / "studies")
    (tmp_path / "studies" / "digits" / "ledger" / "trial-0001.jsonl").unlink()
    for verb in ("best", "status"):
        done = cli_here(verb, "digits", "--root", tmp_path / "studies")
        assert done.returncode == 1, done.stdout
        assert "trial-0001.jsonl is missing" in done.stderr


@pytest.mark.parametrize("loss", ["deleted", pytest.param("older copy", marks=pytest.mark.slow)])
def test_trial_numbers_are_never_given_out_twice(finished, tmp_path, loss, ray_cluster):
    """A lost Optuna storage is made again from the journal: trials that have run keep theirs."""
    import shutil

    from dpsweep.sweep import run_sweep

    root, _ = finished
    before = load_sweep("digits", root=root / "studies").view.trials
    shutil.copytree(root / "studies", tmp_path / "studies")
    path = tmp_path / "studies" / "digits" / "optuna.db"
    if loss == "deleted":
        path.unlink()
    else:
        with sqlite3.connect(path) as db:
            db.execute("delete from trials where number > 0")
        db.close()
    spec = make_spec(tmp_path, tracking={"uri": None}, search__num_trials=len(before) + 1)
    trials = run_sweep(SweepSpec(**spec)).view.trials
    assert sorted(trials) == list(range(len(before) + 1))
    assert {number: trials[number] for number in before} == before


@pytest.mark.parametrize("verb", ["status", "logs", "best"])
@pytest.mark.parametrize("output", ["json", "table"])
def test_no_epsilon_without_its_terms(finished, verb, output):
    root, _ = finished
    done = cli_here(verb, "digits", "--root", root / "studies", "-f", output)
    assert done.returncode == 0, done.stderr
    for term in ("1e-05", "example", "add_or_remove_one", "poisson", "rdp", "unaccounted"):
        assert term in done.stdout, (term, done.stdout)


def test_exact_private_scores_are_named_wherever_epsilon_is(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    spec = make_spec(tmp_path, "exact", tracking={"uri": None}, search__num_trials=1)
    spec["data"]["validation"] = {"fraction": 0.2, "visibility": "exact"}
    result = run_sweep(SweepSpec(**spec))
    assert "exact private validation scores" in result.best().to_dict()["released"]
    assert "exact private validation scores" in result.claims.caption()


@pytest.mark.slow
def test_grid_with_conditions_runs_each_point_once(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    spec = make_spec(tmp_path, "grid", tracking={"uri": None})
    spec["search"] = {
        "sampler": "grid",
        "num_trials": 10,
        "space": {
            "method": {"choice": ["dp_sgd", "non_private"]},
            "optim.lr": {"loguniform": [0.1, 1.0], "num": 2},
            "noise.shape": {"choice": ["constant", "linear"], "when": {"method": "dp_sgd"}},
            "train.epochs": 2,
        },
    }
    result = run_sweep(SweepSpec(**spec))
    points = {
        (t.config["method"], round(t.config["optim.lr"], 6), t.config.get("noise.shape"))
        for t in result.results
    }
    assert len(result.results) == len(points) == 6
    assert result.state == "finished"
    free = [t for t in result.results if t.config["method"] == "non_private"]
    assert all(t.epsilon == float("inf") for t in free)
    assert result.best(max_epsilon=2).config["method"] == "dp_sgd"


def test_a_grid_has_each_point_once_and_named_points_first(tmp_path, ray_cluster):
    from dpsweep.planning.preflight import preflight
    from dpsweep.sweep import run_sweep

    raw = make_spec(tmp_path, "points", tracking={"uri": None})
    raw["search"] = {
        "sampler": "grid",
        "num_trials": 9,
        "points_to_evaluate": [{"optim.lr": 1.0}],
        "space": {"method": "dp_sgd", "optim.lr": {"choice": [0.5, 1.0]}, "train.epochs": 2},
    }
    spec = SweepSpec(**raw)
    assert preflight(spec).num_trials == 2
    assert [t.config["optim.lr"] for t in run_sweep(spec).results] == [1.0, 0.5]


@pytest.mark.slow
def test_a_dead_tracking_server_does_not_hold_up_a_study(tmp_path, ray_cluster):
    """One that was launched goes on without it; the same command, with a store that works,
    delivers events and model."""
    path = tmp_path / "dead.yaml"
    spec = make_spec(tmp_path, "dead", search__num_trials=1, tracking={"uri": None})
    path.write_text(yaml.safe_dump(spec))
    assert cli_here("run", path).returncode == 0
    spec["search"]["num_trials"] = 2
    path.write_text(yaml.safe_dump(spec))
    started = time.monotonic()
    done = cli_here("run", path, "--set", "tracking.uri=http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 100
    assert "tracking store http://127.0.0.1:9 cannot be reached" in " ".join(done.stderr.split())
    assert "not in the tracking store yet: " in done.stderr
    again = cli_here("run", path, "--set", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db")
    assert again.returncode == 0, again.stderr
    assert [status for status, _ in children(tmp_path)] == ["FINISHED", "FINISHED"]
    best = load_sweep("dead", root=tmp_path / "studies").best()
    assert best.model_uri.startswith("models:/")
    assert best.run_id is not None


def test_logs_of_an_unknown_trial(finished):
    root, _ = finished
    done = cli_here("logs", "digits", "--trial", 99, "--root", root / "studies")
    assert done.returncode == 2
    assert "has no trial 99" in done.stderr


def test_infeasible_configurations_never_start(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    spec = make_spec(tmp_path, "infeasible", tracking={"uri": None})
    spec["search"]["space"] = {
        "method": "dp_sgd",
        "noise.noise_multiplier": {"choice": [0.05, 2.0]},
        "train.epochs": 2,
    }
    spec["search"]["num_trials"] = 3
    result = run_sweep(SweepSpec(**spec))
    assert len(result.results) == 3
    assert all(t.config["noise.noise_multiplier"] == 2.0 for t in result.results)
    import optuna

    study = optuna.load_study(study_name="infeasible", storage=f"sqlite:///{result.files.optuna}")
    states = [t.state.name for t in study.trials]
    assert states.count("COMPLETE") == 3
    assert states.count("FAIL") == result.view.num_infeasible == len(states) - 3


LONG = 280  # steps of a trial: enough that three interruptions hit the middle


def long_spec(root):
    """Two CNN trials of many short segments, so that a kill hits the middle of one."""
    spec = make_spec(root, "long", resources={"cpu": 1})
    spec["search"]["num_trials"] = 2
    spec["search"]["space"] = {
        "method": "dp_sgd",
        "model.name": "tanh_cnn",
        "optim.lr": {"loguniform": [0.1, 4]},
        "train.max_steps": LONG,
        "batch.expected": 32,
    }
    spec["report"] = {"every_steps": 10}
    path = root / "long.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def check_truth_after_crash(root):
    result = load_sweep("long", root=root / "studies")
    assert result.state == "finished"
    assert [t.state for t in result.results] == [TrialState.FINISHED] * 2
    for trial in result.results:
        spent = trial_spent(result.files.ledger, trial.trial_id)
        assert trial.epsilon == epsilon_of(spent, delta=DELTA)
        assert trial.epsilon <= 2.0
        assert trial.steps_run <= len(spent) <= LONG
    epsilons = {}
    for record in read_log(result.files.journal):
        if record["event"] in ("trial_report", "trial_ended"):
            assert record["epsilon"] >= epsilons.get(record["trial"], 0.0)
            epsilons[record["trial"]] = record["epsilon"]
    assert {number: t.epsilon for number, t in enumerate(result.results)} == pytest.approx(epsilons)
    assert children(root) == [("FINISHED", "0"), ("FINISHED", "1")]
    assert mlflow_rows(root, "select count(*) from runs where status = 'RUNNING'") == [(0,)]
    import optuna

    study = optuna.load_study(study_name="long", storage=f"sqlite:///{result.files.optuna}")
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 2
    return result


@pytest.mark.slow
def test_a_study_outlives_its_driver_ctrl_c_and_an_actor(tmp_path):
    """One study, interrupted three times, each time by something else."""
    path = long_spec(tmp_path)
    study = tmp_path / "studies" / "long"
    journal, ledger = study / "journal.jsonl", study / "ledger"

    def charged():
        return [len(trial_spent(ledger, n)) for n in (0, 1)]

    process = start(path)
    wait_for_steps(journal, 30, process)
    kill_driver(process, ledger)
    before = charged()

    process = start(path)
    wait_for_steps(journal, 80, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole process group
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "trial 0: continuing at step " in err
    assert "trials keep their models" in err
    assert "run the same command again" in err
    for trial, number in enumerate(charged()):  # nothing is lost to Ctrl-C
        assert find_resumption(study / "trials" / f"{trial:04d}").found.meta["charged"] == number
    assert mlflow_rows(tmp_path, "select count(*) from runs where status = 'RUNNING'") == [(0,)]
    between = charged()
    assert all(b >= a for a, b in zip(before, between))

    process = start(path)
    wait_for_steps(journal, 150, process)
    opened = openings(ledger)
    os.kill(opened[0][-1], signal.SIGKILL)
    _, err = process.communicate(timeout=300)  # it goes on by another actor, to the end
    assert process.returncode == 0, err
    result = check_truth_after_crash(tmp_path)
    assert all(b >= a for a, b in zip(between, charged()))
    assert all(t.steps_run >= 30 for t in result.results)
    assert [len(openings(ledger)[n]) - len(opened[n]) for n in (0, 1)] == [1, 0]


def test_the_demo_runs(tmp_path):
    demo = Path(__file__).parents[1] / "examples" / "digits.yaml"
    done = cli("run", demo, "--set", "search.num_trials=2", "-f", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["model.name"], row["noise.shape"]) for row in rows] == [
        ("linear", "constant"),
        ("tanh_cnn", "cosine"),
    ]
    assert rows[0]["state"] == "finished"
    assert rows[1]["state"] in ("finished", "pruned")
    assert "dpsweep ui digits-demo" in done.stderr
    best = cli_here("best", "digits-demo", "--root", tmp_path / "studies", "-f", "json")
    assert json.loads(best.stdout)["value"] > 0.7


def test_a_worker_uses_the_standard_platform(ray_cluster):
    @ray_cluster.remote
    def system():
        import platform

        return platform.system()

    assert ray_cluster.get(system.remote()) == "Linux"

"""Whole selections without Ray: what is drawn, what is released, and what is gone by when."""

import json
import os
import signal
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from selections import BEGUN, SPACE, go_without_ray, select_spec
from whole_studies import cli_here

from dpsweep import sweep
from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.logs import open_log
from dpsweep.ledgers.records import plan_of
from dpsweep.ledgers.trial import read_records, trial_file, trial_spent
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.privacy.calculator import account_epsilon
from dpsweep.privacy.selection.number import Selection
from dpsweep.running.modes import sealed
from dpsweep.running.stage import Stage
from dpsweep.study.files import StudyFiles
from dpsweep.sweep import run_checked, run_sweep
from dpsweep.tracking import mlflow
from dpsweep.tracking.memory import MemoryTracker

HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of private directories, in a world in which trials run in this process."""
    root = tmp_path / "temporary"
    root.mkdir()
    go_without_ray(monkeypatch.setattr, root)
    return root


@pytest.fixture
def traces(temporary, tmp_path, monkeypatch):
    """Calls of what runs after the trials -> what there was of other trials at that time."""
    seen = {}

    def watched(name):
        given = getattr(sweep, name)

        def call(*args, **more):
            of_ray = [str(p.relative_to(temporary)) for p in temporary.rglob("*")]
            seen[name] = of_ray, (tmp_path / "studies" / "selection" / "sealed").exists()
            return given(*args, **more)

        monkeypatch.setattr(sweep, name, call)

    watched("log_best_model")
    watched("deliver")
    return seen


def test_all_traces_are_gone_before_anything_is_delivered(tmp_path, traces):
    result = run_sweep(select_spec(tmp_path))
    assert [t.trial_id for t in result.results] == [0]
    assert traces == {"log_best_model": ([], False), "deliver": ([], False)}


def test_the_store_hears_of_a_selection_when_nothing_else_is_left(tmp_path, temporary, monkeypatch):
    """It keeps when it was told something: the start would tell how many trials there were."""
    made, told = [], []

    class Store(MemoryTracker):
        def __init__(self, *args):
            super().__init__()
            made.append((tmp_path / "studies" / "selection" / "sealed").exists())

        def handle(self, events):
            super().handle(events)
            told.extend(event["event"] for event in events)

    monkeypatch.setattr(mlflow, "MLflowTracker", Store)
    spec = select_spec(tmp_path)
    spec = spec.model_copy(
        update={"tracking": spec.tracking.model_copy(update={"uri": "sqlite:///none.db"})}
    )
    with monkeypatch.context() as context:
        context.setattr(Stage, "execute", lambda *args: "interrupted")
        with pytest.raises(KeyboardInterrupt):
            run_sweep(spec)
    assert made == []
    result = run_sweep(spec)
    assert made == [False]
    assert (told[0], told[-1]) == ("study_started", "study_ended")
    assert [trial.trial_id for trial in result.results] == [0]


def test_those_of_ray_also_where_the_selection_is_interrupted(tmp_path, traces, monkeypatch):
    monkeypatch.setattr(Stage, "execute", lambda *args: "interrupted")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(select_spec(tmp_path))
    assert traces == {"deliver": ([], True)}  # the sealed study goes on later


def test_and_where_it_fails(tmp_path, traces, monkeypatch):
    def fail(*args):
        raise SweepError("out of memory")

    monkeypatch.setattr(Stage, "execute", fail)
    with pytest.raises(SweepError, match="out of memory"):
        run_sweep(select_spec(tmp_path))
    assert traces == {"deliver": ([], True)}


# Runs a selection in which one function is replaced by the death of the process.
WITH_A_KILL = """
import os, signal, sys
from pathlib import Path
import selections
from dpsweep.cluster import private_directory; from dpsweep.running.modes import sealed; from dpsweep import sweep

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

root = Path(sys.argv[1])
selections.go_without_ray(setattr, root / "temporary")
exec(sys.argv[2])
sweep.run_sweep(selections.select_spec(root, is_noisy=sys.argv[3] == "noisy"))
"""


@pytest.mark.slow
def test_a_selection_by_profiles_claims_less_for_the_same_trials(tmp_path, temporary):
    """What is claimed comes from the ledger, and a second launch finds it there."""
    epsilons = {}
    for accountant in ("rdp", "pld"):
        # The noise is given, so that both accountants price the same plans.
        space = {
            "method": "dp_sgd",
            "optim.lr": 1.0,
            "train.max_steps": 20,
            "noise.noise_multiplier": 4.0,
        }
        spec = select_spec(tmp_path / accountant, space, mean=10, accountant=accountant)
        statement = run_sweep(spec).study_statement()
        assert (statement.accountant, statement.accounting) == (accountant, "select")
        assert run_sweep(spec).study_statement() == statement
        epsilons[accountant] = statement.epsilon
        plan = StudyFiles(tmp_path / accountant / "studies", "selection").task(0).full_plan
        segment = {"event": "repeat_and_select", "mean": 10, "shape": 1, "of": plan.to_json()}
        priced = account_epsilon([segment], delta=1e-5, accountant=accountant)["epsilon"]
        assert priced * (1 - 1e-3) <= statement.epsilon <= priced * (1 + 2e-3)
    assert epsilons["pld"] < 0.8 * epsilons["rdp"]


OFTEN = [  # where a kill leaves most behind; each takes seconds
    ("sealed.charges_at_once = die", "noisy"),
    ("private_directory.shutil.rmtree = die", "public"),
]
ALL_POINTS = [
    *OFTEN,
    ("sealed.entries.trial_started = die", "public"),
    ("sweep.erase = die", "noisy"),
    ("sealed.Study.write_task = die", "public"),
    ("sealed._release = die", "public"),
    ("sealed.Study.last_report = die", "noisy"),
    ("selections.FakeRay.disconnect = die", "public"),
    ("sweep.log_best_model = die", "public"),
    ("sweep.deliver = die", "public"),
]


@pytest.mark.parametrize(
    ("point", "visibility"),
    [
        pytest.param(*row, marks=() if row in OFTEN else pytest.mark.slow, id=row[0])
        for row in ALL_POINTS
    ],
)
def test_the_command_after_a_kill_removes_all_traces(tmp_path, point, visibility, temporary):
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_KILL, str(tmp_path), point, visibility],
        env={**os.environ, "PYTHONPATH": str(HELPERS)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    study = tmp_path / "studies" / "selection"
    kept = [path for path in (*temporary.iterdir(), study / "sealed") if path.exists()]
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in kept)
    result = run_sweep(select_spec(tmp_path, is_noisy=visibility == "noisy"))
    assert result.state == "finished"
    assert [trial.trial_id for trial in result.results] == [0]
    assert list(temporary.iterdir()) == []
    assert not (study / "sealed").exists()


def test_the_winners_ledger_has_one_charge_of_positions_and_one_of_scores(tmp_path, temporary):
    result = run_sweep(select_spec(tmp_path, is_noisy=True))
    task, ledger = result.files.task(0), result.files.ledger
    first, second = read_records(trial_file(ledger, 0))
    assert (first["start"], first["stop"]) == (0, 4)
    assert "start" not in second
    assert plan_of(first) + plan_of(second) == trial_spent(ledger, 0)
    assert len(trial_spent(ledger, 0)) == len(task.full_plan)
    (again,) = run_sweep(select_spec(tmp_path, is_noisy=True)).results
    assert again.trial_id == 0


def test_a_selection_that_an_earlier_version_has_released_goes_on(tmp_path, temporary):
    """The scores of its winner were charged together with the positions."""
    result = run_sweep(select_spec(tmp_path, is_noisy=True))
    path = trial_file(result.files.ledger, 0)
    events = trial_spent(result.files.ledger, 0).to_json()
    path.unlink()
    with open_log(path) as log:
        log.append({"kind": "charge", "start": 0, "stop": 4, "events": events})
    again = run_sweep(select_spec(tmp_path, is_noisy=True))
    assert again.study_statement() == result.study_statement()


def left_behind(root):
    """Make what a killed process leaves."""
    path = root / "dpsweep-abcd1234"
    (path / "ray").mkdir(parents=True)
    (path / "ray" / "scores").write_text("0.75")
    (path / "lock").write_text("4711")
    return path


def test_a_directory_of_ray_is_found_by_a_study_that_has_finished(tmp_path, temporary):
    run_sweep(select_spec(tmp_path))
    path = left_behind(temporary)
    run_sweep(select_spec(tmp_path))
    assert not path.exists()


@pytest.mark.parametrize("verb", [("status", "selection"), ("doctor",), ("methods",)])
def test_and_by_every_command(tmp_path, temporary, verb):
    path = left_behind(temporary)
    cli_here(*verb)
    assert not path.exists()


def test_what_cannot_be_erased_is_told(tmp_path, temporary, monkeypatch):
    monkeypatch.setattr(sealed.shutil, "rmtree", lambda *args, **more: None)
    with pytest.raises(SweepError, match="could not be removed"):
        run_sweep(select_spec(tmp_path))


# Two targets for one trial: the dearer half of the space is in no sampled plan.
CHEAP, DEAR = 0.4, 0.9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_no_draw_is_dearer_than_what_was_charged(tmp_path, temporary, monkeypatch, accountant):
    """The theorems hold for trials below the charged bound; a sample of plans may miss some."""
    cheap = {**SPACE, "noise.target_epsilon": CHEAP}
    narrow = preflight(select_spec(tmp_path, cheap, accountant=accountant))
    charge = choose_selection(narrow)
    wide = {**SPACE, "noise.target_epsilon": {"choice": [CHEAP, DEAR]}}
    spec = select_spec(tmp_path, wide, mean=30, accountant=accountant)
    checked = preflight(spec)
    dear = checked.admit(0, {"method": "dp_sgd", "optim.lr": 1.0, "noise.target_epsilon": DEAR})
    assert not charge.bound.covers(dear.full_plan)
    monkeypatch.setattr(sweep, "choose_selection", lambda checked: charge)
    monkeypatch.setattr(Selection, "draw", lambda self, rng: 20)
    drawn = kept_sealed(monkeypatch)
    run_checked(checked)
    assert len(drawn) == 20
    assert all(charge.bound.covers(task.full_plan) for task in drawn)
    assert {task.hparams["noise.target_epsilon"] for task in drawn} == {CHEAP}


def kept_sealed(monkeypatch):
    """Return a list that the tasks of the sealed study are added to before it is erased."""
    tasks, erase = [], sweep.erase

    def look(study):
        sealed_files = StudyFiles(study.files.path, sealed.SEALED)
        if sealed_files.spec.exists():
            tasks.extend(sealed_files.task(n) for n in sorted(sealed_files.view().trials))
        erase(study)

    monkeypatch.setattr(sweep, "erase", look)
    return tasks


def test_initial_weights_are_drawn_in_secret(tmp_path, temporary, monkeypatch):
    """From the study's seed they would tell which draw has won, and so how many there were."""
    monkeypatch.setattr(Selection, "draw", lambda self, rng: 2)
    space = {"method": "dp_sgd", "train.max_steps": 1}
    tasks = kept_sealed(monkeypatch)
    for name in ("one", "other"):
        run_sweep(select_spec(tmp_path / name, space))
    assert [task.trial for task in tasks] == [0, 1, 0, 1]
    seeds = [task.seed for task in tasks]
    assert None not in seeds
    assert len(set(seeds)) == 4
    weights = [torch.cat([part.flatten() for part in begun.values()]) for begun in BEGUN]
    assert len(weights) == 4
    assert not any(torch.equal(a, b) for a, b in combinations(weights, 2))


def test_the_winner_is_released_without_its_secret_seed(tmp_path, temporary, monkeypatch):
    tasks = kept_sealed(monkeypatch)
    result = run_sweep(select_spec(tmp_path))
    (path,) = result.files.path.glob("trials/*/trial.json")
    assert json.loads(path.read_text())["seed"] is None
    seeds = [task.seed for task in tasks]
    assert seeds
    for file in filter(Path.is_file, result.files.path.rglob("*")):
        text = file.read_bytes()
        assert not any(str(seed).encode() in text for seed in seeds), file

"""Whole studies that release the best of a random number of trials, and nothing of the others."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from whole_studies import DELTA, cli, cli_here, make_spec, mlflow_rows, run_and_kill

from dpsweep.durable import read_log
from dpsweep.privacy.ledger import trial_spent
from dpsweep.results import load_sweep
from dpsweep.trial import TrialState

pytestmark = pytest.mark.ray


def select_spec(root, name="select", **changes):
    raw = make_spec(root, name, **changes)
    raw["privacy"] = {
        "delta": DELTA, "trial_epsilon": 1.0, "accounting": "select",
        "selection": {"mean": 4, "shape": 1},
    }  # fmt: skip
    raw["search"] = {
        "space": {
            "method": "dp_sgd",
            "optim.lr": {"loguniform": [0.001, 4]},
            "clip.max_grad_norm": {"loguniform": [0.1, 2]},
            "train.epochs": {"uniform": [3, 6]},
        }
    }
    return raw


def everything_under(root):
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes().decode("utf-8", "replace")


# Runs a selection of five trials and keeps a copy of what it erases, for the test to look for.
WITH_A_COPY = """
import shutil, sys
from pathlib import Path
from dpsweep import cli, sealed
from dpsweep.privacy.selection import Selection

Selection.draw = lambda self, rng: 5
aside, erase = Path(sys.argv.pop()), shutil.rmtree

def keep_a_copy(path, **kwargs):
    if Path(path).name == sealed.SEALED:
        shutil.copytree(path, aside)
        assert Path(path).stat().st_mode & 0o777 == 0o700
    erase(path, **kwargs)

sealed.shutil.rmtree = keep_a_copy
cli.main()
"""


def ray_sessions():
    """Directories in which Ray keeps its state; other programs of this machine may add some."""
    return set(Path("/tmp").glob("ray/session_2*"))


def test_a_selection_leaves_nothing_of_its_losers(tmp_path):
    from dpsweep import sealed

    root, aside = tmp_path / "visible", tmp_path / "aside"
    root.mkdir()
    raw = select_spec(root)
    path = tmp_path / "select.yaml"
    path.write_text(yaml.safe_dump(raw))
    before = ray_sessions()
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_COPY, "run", str(path), str(aside)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for session in ray_sessions() - before:
        for place, text in everything_under(session):
            assert str(root) not in text, place
    result = load_sweep("select", root=root / "studies")
    assert result.state == "finished"
    assert [t.trial_id for t in result.trials] == [0]
    winner = result.best()
    ray = Path((aside / "ray-directory").read_text())
    assert not ray.exists()

    ended = [r for r in read_log(aside / "journal.jsonl") if r["event"] == "trial_ended"]
    started = {
        r["trial"]: r["hparams"]
        for r in read_log(aside / "journal.jsonl") if r["event"] == "trial_started"
    }  # fmt: skip
    assert len(ended) == 5
    best = max(ended, key=lambda r: r["value"])
    assert winner.value == best["value"]
    assert winner.config["optim.lr"] == started[best["trial"]]["optim.lr"]
    losers = [r["trial"] for r in ended if r["trial"] != best["trial"]]
    marks = {repr(started[n][key]) for n in losers for key in ("optim.lr", "clip.max_grad_norm")}
    reported = [
        (r["trial"], repr(value))
        for r in read_log(aside / "journal.jsonl")
        if r["event"] in ("trial_report", "trial_ended")
        for value in r["metrics"].values()
        if len(repr(value)) > 9  # a round number may stand anywhere
    ]
    own = {text for number, text in reported if number == best["trial"]}
    marks |= {text for number, text in reported if number != best["trial"]} - own
    assert len(marks) > 8  # their hyperparameters, and what they reported
    shown = {str(path): text for path, text in everything_under(root)}
    shown["stdout and stderr"] = done.stdout + done.stderr
    for place, text in shown.items():
        # Digits of a loser, to the precision that any output prints.
        found = [mark for mark in marks if mark[:9] in text]
        assert not found, (place, found)
        assert "5 trials" not in text
    assert not (result.files.path / sealed.SEALED).exists()
    times = {r["time_ms"] for r in read_log(result.files.journal)}
    assert all(time % 86_400_000 == 0 for time in times)  # the day: the run time tells K
    again = cli_here("status", "select", "--root", root / "studies")
    assert not re.search(r"\d s\b", again.stderr)
    children = mlflow_rows(root, "select count(*) from tags where key = 'mlflow.parentRunId'")
    assert children == [(1,)]
    counts = mlflow_rows(root, "select key, value from metrics where key like 'search/%'")
    assert all(value <= 1 for _, value in counts)

    claim = result.study_statement()
    assert claim.accounting == "select"
    assert winner.statement == claim
    assert winner.epsilon > 1.0  # the price of the choice, not of one run
    assert "winner only" in claim.released


@pytest.fixture(scope="module")
def killed_selection(tmp_path_factory):
    """A selection whose driver was killed: root, spec's file, copy of the studies."""
    root = tmp_path_factory.mktemp("killed_selection")
    raw = select_spec(root, "apart")
    raw["privacy"]["selection"] = {"mean": 5, "shape": 1}
    raw["search"]["space"]["train.epochs"] = 15
    raw["report"] = {"every_steps": 5}
    return root, *run_and_kill(root, raw, "apart/sealed", steps=10)


def test_a_selection_that_is_killed_goes_on_with_the_same_number_of_trials(killed_selection):
    root, path, _ = killed_selection
    apart = root / "studies" / "apart" / "sealed"
    drawn = [r for r in read_log(apart / "ledger" / "study.jsonl") if r["kind"] == "num_trials"]
    assert len(drawn) == 1
    status = cli_here("status", "apart", "--root", root / "studies")
    assert status.returncode == 0, status.stderr
    assert "nothing is released yet" in status.stderr
    for verb in ("status", "logs", "best"):  # the sealed study is nobody's to open
        peeked = cli_here(verb, "sealed", "--root", root / "studies" / "apart")
        assert peeked.returncode == 2, peeked.stdout
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    result = load_sweep("apart", root=root / "studies")
    assert [t.state for t in result.trials] == [TrialState.FINISHED]
    best = cli_here("best", "apart", "--root", root / "studies", "-f", "json")
    record = json.loads(best.stdout)
    assert record["accounting"] == "select"
    assert record["epsilon"] == result.study_statement().epsilon
    # An attempt that a crash cut off is thrown away: the winner has charged its plan once.
    assert len(trial_spent(result.files.ledger, 0)) == result.view.trials[0].num_steps


def test_a_selection_whose_trials_were_removed_loses_its_claim(killed_selection):
    _, path, copy = killed_selection
    shutil.rmtree(copy / "apart" / "sealed")  # a number of trials cut short, to draw another one
    done = cli("run", path, "--set", f"storage.path={copy}")
    assert done.returncode == 1
    assert "would be drawn anew" in done.stderr
    result = load_sweep("apart", root=copy)
    assert result.claims.accounting == "unaccounted"
    assert result.study_statement() is None

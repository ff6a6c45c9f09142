"""Whole studies that search on a secret part of the records, on real digits and a real Ray."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from secret_parts import secret_spec
from whole_studies import DELTA, cli, cli_here, mlflow_rows, parent_note, run_and_kill

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep
from dpsweep.study.trial import TrialState

pytestmark = pytest.mark.ray

# Runs a search of four trials and keeps a copy of what is erased before the final run.
WITH_A_COPY = """
import shutil, sys
from pathlib import Path
from dpsweep.cli import app as cli; from dpsweep.running.modes import sealed
from dpsweep.privacy.selection.number import Selection

Selection.draw = lambda self, rng: 4
aside, erase = Path(sys.argv.pop()), shutil.rmtree

def keep_a_copy(path, **kwargs):
    if Path(path).name == sealed.SEALED and not aside.exists():
        shutil.copytree(path, aside)
        assert Path(path).stat().st_mode & 0o777 == 0o700
    erase(path, **kwargs)

sealed.shutil.rmtree = keep_a_copy
cli.main()
"""


def ray_sessions():
    """Directories in which Ray keeps its state; other programs of this machine may add some."""
    return set(Path("/tmp").glob("ray/session_2*"))


def files_below(root):
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes().decode("utf-8", "replace")


def check_whole(result):
    """One run, on all records, at the epsilon of search and final run; within its own on disk."""
    assert result.state == "finished"
    assert [trial.trial_id for trial in result.results] == [0]
    record = read_study_state(result.files.ledger).selection
    final = result.best()
    assert final.state is TrialState.FINISHED
    assert final.epsilon == result.study_statement().epsilon == record["epsilon"] <= 3.0
    spent = trial_spent(result.files.ledger, 0)
    assert epsilon_of(spent, delta=DELTA) <= record["subset"]["final_epsilon"] < 3.0
    assert {run.event.sample_rate for run in spent.runs if run.part == "private"} == {80 / 1079}
    assert result.claims.downgraded is None
    return final


def test_nothing_but_the_final_run_is_left_of_it(tmp_path):
    root, aside = tmp_path / "visible", tmp_path / "aside"
    root.mkdir()
    raw = secret_spec(root, tracking={"uri": f"sqlite:///{root}/mlflow.db"})
    raw["data"]["validation"] = {"fraction": 0.171, "visibility": "noisy", "noise_std": 0.06}
    clip = {"clip.max_grad_norm": {"loguniform": [0.5, 2]}}
    raw["search"]["space"] = {**raw["search"]["space"], **clip}
    path = tmp_path / "secret.yaml"
    path.write_text(yaml.safe_dump(raw))
    before = ray_sessions()
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_COPY, "run", str(path), str(aside)],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for session in ray_sessions() - before:
        for place, text in files_below(session):
            assert str(root) not in text, place

    journal = read_log(aside / "journal.jsonl")
    (drawn,) = [r for r in read_log(aside / "ledger" / "study.jsonl") if r["kind"] == "num_trials"]
    started = {r["trial"]: r["hparams"] for r in journal if r["event"] == "trial_started"}
    ended = [record for record in journal if record["event"] == "trial_ended"]
    assert drawn["num_trials"] == len(ended) == 4
    best = max(ended, key=lambda record: record["value"])["trial"]
    losers = [number for number in started if number != best]
    seed = drawn["part_seed"]
    marks = {seed, seed[:16], str(int(seed, 16))[:16]}
    marks |= {
        repr(started[n][k])[:9] for n in losers for k in ("optim.noise_lr", "clip.max_grad_norm")
    }
    marks |= {repr(started[best]["optim.noise_lr"])[:9]}  # carried over, it is five times as large
    scores = [v for r in journal for v in (r.get("metrics") or {}).values()]
    marks |= {repr(score)[:9] for score in scores if len(repr(score)) > 9}  # the best one's, too
    assert len(marks) > 12
    shown = {str(place): text for place, text in files_below(root)}
    shown["stdout and stderr"] = done.stdout + done.stderr
    for place, text in shown.items():
        assert not [mark for mark in marks if mark in text], place
        assert "4 trials" not in text
    result = load_sweep("secret", root=root / "studies")
    assert not (result.files.path / "sealed").exists()
    assert not (result.files.path / "ray").exists()  # its times tell how long the search took
    assert all(r["time_ms"] % 86_400_000 == 0 for r in read_log(result.files.journal))

    final = result.best()
    assert final.config["optim.noise_lr"] == pytest.approx(
        started[best]["optim.noise_lr"] * final.config["batch.expected"] / 16
    )
    assert final.config["clip.max_grad_norm"] == started[best]["clip.max_grad_norm"]
    claim = result.study_statement()
    spent = trial_spent(result.files.ledger, 0)
    assert spent.part("validation")
    assert epsilon_of(spent, delta=DELTA) < claim.epsilon <= 3.0
    tags = dict(
        mlflow_rows(
            root,
            "select t.key, t.value from tags t join tags n on n.run_uuid = t.run_uuid "
            "where n.key = 'dpsweep.trial' and n.value = '0'",
        )
    )
    assert tags["dp.subset_rate"] == "0.2"
    assert "the final run on all private records" in tags["dp.released"]
    epsilons = mlflow_rows(root, "select distinct value from metrics where key = 'dp/epsilon'")
    assert epsilons == [(claim.epsilon,)]
    children = mlflow_rows(root, "select count(*) from tags where key = 'mlflow.parentRunId'")
    assert children == [(1,)]
    note = parent_note(root)
    assert "drawn in secret" in note
    stored = load_sweep("mlflow:secret/secret", tracking_uri=f"sqlite:///{root}/mlflow.db")
    assert stored.best().trial_id == 0
    assert stored.study_statement().epsilon == claim.epsilon
    assert "secret part of them" in stored.study_statement().released


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A search on a secret part whose driver was killed while the search ran."""
    root = tmp_path_factory.mktemp("killed_search")
    raw = secret_spec(root, "apart", mean=4)
    raw["search"]["space"] = {**raw["search"]["space"], "train.epochs": 12}
    raw["report"] = {"every_steps": 5}
    return root, *run_and_kill(root, raw, "apart/sealed", steps=10)


def drawn_of(studies):
    ledger = read_log(studies / "apart" / "sealed" / "ledger" / "study.jsonl")
    return [record for record in ledger if record["kind"] == "num_trials"]


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_same_part(killed):
    root, path, _ = killed
    (drawn,) = drawn_of(root / "studies")
    assert len(drawn["part_seed"]) == 64
    status = cli_here("status", "apart", "--root", root / "studies")
    assert status.returncode == 0, status.stderr
    assert "nothing is released yet" in status.stderr
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    result = load_sweep("apart", root=root / "studies")
    check_whole(result)
    for _, text in files_below(result.files.path):
        assert drawn["part_seed"] not in text


@pytest.mark.slow
def test_a_part_that_was_removed_takes_the_claim_away(killed):
    _, path, copy = killed
    shutil.rmtree(copy / "apart" / "sealed")
    done = cli("run", path, "--set", f"storage.path={copy}")
    assert done.returncode == 1
    assert "would be drawn anew" in done.stderr
    result = load_sweep("apart", root=copy)
    assert result.study_statement() is None


@pytest.mark.slow
def test_kill_9_in_the_final_run_leaves_its_charge_and_searches_no_more(tmp_path):
    raw = secret_spec(tmp_path, "late", mean=1)
    raw["search"]["space"] = {**raw["search"]["space"], "train.epochs": 30}
    raw["report"] = {"every_steps": 5}
    path, _ = run_and_kill(tmp_path, raw, "late", steps=4, trial=0)
    ledger = tmp_path / "studies" / "late" / "ledger"
    before = trial_spent(ledger, 0)
    assert len(before) >= 4
    assert not (tmp_path / "studies" / "late" / "sealed" / "journal.jsonl").exists()
    config = load_sweep("late", root=tmp_path / "studies").view.trials[0].hparams
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    assert "the final run" in done.stderr
    result = load_sweep("late", root=tmp_path / "studies")
    assert check_whole(result).config["optim.noise_lr"] == config["optim.noise_lr"]
    assert len(before) <= len(trial_spent(ledger, 0)) <= len(result.files.task(0).plan)

"""Whole studies that release the best of a random number of trials, and nothing of the others."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from other_user import PLACES, files_of_others, tellers
from whole_studies import (
    DELTA,
    cli,
    cli_here,
    descendants,
    kill_driver,
    make_spec,
    mlflow_rows,
    run_and_kill,
    start,
)  # fmt: skip

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import trial_spent
from dpsweep.results.study import load_sweep
from dpsweep.study.trial import TrialState

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


def scores_of_its_own(raw):
    """Let a study have scores in 1/307, as no other one on this machine has them."""
    for part in ("validation", "test"):
        raw["data"][part]["fraction"] = 0.171


def everything_under(root):
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes().decode("utf-8", "replace")


# Runs a selection of five trials and keeps a copy of what it erases, for the test to look for.
WITH_A_COPY = """
import shutil, sys
from pathlib import Path
from dpsweep.cli import app as cli; from dpsweep.running.modes import sealed
from dpsweep.privacy.selection.number import Selection

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
    from dpsweep.running.modes import sealed

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
    assert [t.trial_id for t in result.results] == [0]
    winner = result.best()

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


@pytest.mark.slow
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
    assert [t.state for t in result.results] == [TrialState.FINISHED]
    best = cli_here("best", "apart", "--root", root / "studies", "-f", "json")
    record = json.loads(best.stdout)
    assert record["accounting"] == "select"
    assert record["epsilon"] == result.study_statement().epsilon
    # An attempt that a crash cut off is thrown away: the winner has charged its plan once.
    assert len(trial_spent(result.files.ledger, 0)) == result.view.trials[0].num_steps


@pytest.mark.slow
def test_a_selection_whose_trials_were_removed_loses_its_claim(killed_selection):
    _, path, copy = killed_selection
    shutil.rmtree(copy / "apart" / "sealed")  # a number of trials cut short, to draw another one
    done = cli("run", path, "--set", f"storage.path={copy}")
    assert done.returncode == 1
    assert "would be drawn anew" in done.stderr
    result = load_sweep("apart", root=copy)
    assert result.claims.accounting == "unaccounted"
    assert result.study_statement() is None


def numbers_of(sealed):
    """Return what must not be told of the trials of a sealed study, by trial."""
    secrets = {}
    for record in read_log(sealed / "journal.jsonl"):
        if record["event"] in ("trial_started", "trial_report", "trial_ended"):
            told = [record.get(key) or {} for key in ("hparams", "metrics", "delivered")]
            values = [value for part in told for value in part.values()]
            long = {v for v in values if isinstance(v, float) and len(repr(v)) > 12}
            secrets.setdefault(record["trial"], set()).update(long)
    return secrets


def names_of(sealed):
    """Return Tune's own names of the trials of a sealed study."""
    states = [path.read_text() for path in sealed.glob("ray/tune/experiment_state-*.json")]
    return {name for text in states for name in re.findall(r"trial_id\W+([0-9a-f]{8})\b", text)}


def directory_of(process):
    """Return the private directory of a running study."""
    for path in Path("/tmp").glob("dpsweep-*"):
        with contextlib.suppress(OSError, ValueError):
            if int((path / "lock").read_text().split()[0]) == process.pid:
                return path
    return None


def wait_for_ends(sealed, count, process):
    """Wait until some trials of a sealed study have ended."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        events = [r["event"] for r in read_log(sealed / "journal.jsonl")]
        if events.count("trial_ended") >= count:
            return
        time.sleep(0.1)
    pytest.fail(f"fewer than {count} trials have ended")


@pytest.fixture
def open_root():
    """A folder in which everybody may look around, other than those of pytest."""
    root = Path(tempfile.mkdtemp(prefix="select-test-"))
    root.chmod(0o755)
    before = os.umask(0o022)
    yield root
    os.umask(before)
    shutil.rmtree(root, ignore_errors=True)


ASK = """
import sys
from ray._raylet import GcsClient
print(len(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=20)))
"""


def refusal(port, mode):
    """Return how Ray refuses the keys of a cluster to one with another token, once it answers."""
    for _ in range(5):
        asked = subprocess.run(
            [sys.executable, "-c", ASK, f"127.0.0.1:{port}"],
            env={**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 64},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert asked.returncode != 0, asked.stdout
        if "Timed out while waiting" not in asked.stderr:  # it asks for 5 s only
            break
    return asked.stderr


@pytest.mark.slow
def test_nobody_else_can_read_a_selection_that_runs_or_was_killed(open_root, monkeypatch):
    raw = select_spec(open_root, "shut")
    raw["privacy"]["selection"] = {"mean": 50, "shape": 50}
    raw["search"]["space"]["train.epochs"] = {"uniform": [20, 30]}
    scores_of_its_own(raw)
    path, mark = open_root / "shut.yaml", open_root / "mark"
    path.write_text(yaml.safe_dump(raw))
    mark.touch()
    sealed = open_root / "studies" / "shut" / "sealed"
    with monkeypatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # of no avail
        process = start(path)
    try:
        wait_for_ends(sealed, 2, process)
        process.send_signal(signal.SIGSTOP)  # it must not end while it is looked at
        private = directory_of(process)
        assert (private / "ray").stat().st_mode & 0o777 == 0o777  # Ray's doing
        assert private.stat().st_mode & 0o777 == 0o700
        (state,) = private.glob("ray/session_2*/artifacts/*/tune/driver_artifacts/experiment*")
        numbers = set.union(*numbers_of(sealed).values())
        assert tellers([state], numbers, names_of(sealed))  # those that are to be found
        seen = files_of_others([*PLACES, open_root], newer=mark)
        assert open_root / "studies" / "shut" / "journal.jsonl" in seen
        assert not [file for file in seen if private in file.parents or sealed in file.parents]
        released = numbers_of(sealed.parent)  # it may have ended meanwhile
        assert set(released) <= {0}
        numbers -= released.get(0, set())
        assert tellers(seen, numbers, names_of(sealed)) == []
        (port,) = private.glob("ray/session_2*/gcs_server_port_*")
        for usual in ("disabled", "token"):
            assert "AuthenticationError" in refusal(port.read_text(), usual)
        started = descendants(process.pid)
    finally:
        kill_driver(process, sealed / "ledger")
    with contextlib.suppress(FileNotFoundError):  # another study that begins here removes it
        assert private.stat().st_mode & 0o777 == 0o700
    assert tellers(files_of_others([*PLACES, open_root], newer=mark), numbers) == []
    assert cli_here("status", "shut", "--root", open_root / "studies").returncode == 0
    assert not (private / "ray").exists()
    for pid in started:  # an agent of Ray's outlives its driver by a minute
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while private.exists():
        assert time.monotonic() < deadline
        assert cli_here("status", "shut", "--root", open_root / "studies").returncode == 0
        time.sleep(0.2)


def offences(mark, study, places):
    """Return what another user can see of the trials of a study that runs, or was killed."""
    sealed = study / "sealed"
    if not (sealed / "journal.jsonl").exists():
        return [], 0
    numbers, names = set().union(*numbers_of(sealed).values()), names_of(sealed)
    seen = files_of_others(places, newer=mark)
    assert study / "journal.jsonl" in seen
    seen_there = tellers(seen, numbers, names)
    released = numbers_of(study)  # read last: the winner may be released meanwhile
    assert set(released) <= {0}
    numbers -= released.get(0, set())
    hidden = [
        file
        for file in seen
        if sealed in file.parents or re.match("/tmp/dpsweep-[^/]+/ray/", str(file))
    ]
    return [*hidden, *(each for each in seen_there if each[1] in numbers | names)], len(numbers)


def num_events(study):
    """Return how many events the sealed journal of a study has."""
    return len(read_log(study / "sealed" / "journal.jsonl"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_nobody_else_can_read_it_whenever_it_is_killed(open_root):
    """As another user, on the whole machine: ten kills at random moments, then the end."""
    raw = select_spec(open_root, "shot-0")
    raw["privacy"]["selection"] = {"mean": 60, "shape": 1}
    raw["search"]["space"]["train.epochs"] = {"uniform": [20, 60]}
    scores_of_its_own(raw)
    path, mark = open_root / "shot.yaml", open_root / "mark"
    mark.touch()
    moments, history = random.Random(os.urandom(8)), []
    for kill in range(10):
        path.write_text(yaml.safe_dump(raw))
        study = open_root / "studies" / raw["name"]
        process = start(path)
        try:
            while directory_of(process) is None and process.poll() is None:
                time.sleep(0.1)
            before = num_events(study)
            while kill % 2 and num_events(study) == before and process.poll() is None:
                time.sleep(0.1)  # every other one is killed among its trials
            moment = moments.uniform(0, 8)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=moment)
            found = offences(mark, study, PLACES)
        finally:
            process.kill()
            process.communicate(timeout=60)
        found_after = offences(mark, study, ["/", *PLACES])
        history.append((round(moment, 1), found[1], found_after[1]))
        assert found[0] == found_after[0] == [], history
        if process.returncode == 0:  # it had finished: the next one is another study
            raw["name"] = f"shot-{kill + 1}"
    print("seconds, numbers that could be found before and after each kill:", history)
    assert sum(count > 0 for _, _, count in history) >= 3, history
    secrets = numbers_of(study / "sealed") if (study / "sealed").exists() else {}
    done = cli("run", path, "--set", f"name={study.name}", timeout=1200)
    assert done.returncode == 0, done.stderr
    released = numbers_of(study)
    assert set(released) == {0}
    losers = set().union(*secrets.values()) - released[0]
    assert tellers(files_of_others(["/", *PLACES], newer=mark), losers) == []
    assert not (study / "sealed").exists()

"""Specs, commands and look-ups that the tests of whole studies share."""

import contextlib
import functools
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import yaml

from dpsweep.foundation.logs import read_log

DELTA = 1e-5
CORES = 2  # of the Ray that tests share


def make_spec(root: Path, name="digits", **changes):
    """Return a small study; one process runs its trials, as starting another takes longest."""
    spec = {
        "name": name,
        "data": {
            "dataset": "digits",
            "validation": {"fraction": 0.2, "visibility": "public"},
            "test": {"fraction": 0.2, "visibility": "public"},
        },
        "privacy": {"delta": DELTA, "trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {
            "sampler": "random",
            "num_trials": 3,
            "space": {
                "method": "dp_sgd",
                "optim.lr": {"loguniform": [0.1, 4]},
                "noise.shape": {"choice": ["constant", "cosine"]},
                "noise.end_ratio": {"uniform": [0.5, 1.5], "when": {"noise.shape": "cosine"}},
                "train.epochs": 5,
            },
        },
        "report": {"points": 5},
        "resources": {"cpu": CORES},
        "tracking": {"uri": f"sqlite:///{root}/mlflow.db", "pictures": False},
        "storage": {"path": str(root / "studies")},
    }
    for key, value in changes.items():
        section, _, leaf = key.partition("__")
        if leaf:
            spec[section] = {**spec[section], leaf: value}
        else:
            spec[section] = value
    return spec


def cli(*arguments, timeout=300, **kwargs):
    command = [sys.executable, "-m", "dpsweep", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **kwargs)


@functools.cache
def _put_together(get_command, app):
    return get_command(app)


def cli_here(*arguments):
    """Run a command in this process: for those that only read, as starting Python takes longer.

    Verbs and options are put together once, not for each command, which takes .08 s.
    """
    import typer.main

    from dpsweep.cli.app import main

    command, code = ["dpsweep", *map(str, arguments)], 0
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        mock.patch.object(sys, "argv", command),
        mock.patch.object(
            typer.main, "get_command", partial(_put_together, typer.main.get_command)
        ),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def mlflow_rows(root, query):
    with sqlite3.connect(root / "mlflow.db") as db:
        return db.execute(query).fetchall()


def parent_note(root):
    """Return the description of the study's own run: its privacy card."""
    ((note,),) = mlflow_rows(
        root,
        "select n.value from tags n join tags s on s.run_uuid = n.run_uuid "
        "and s.key = 'dpsweep.study' where n.key = 'mlflow.note.content' and n.run_uuid not in "
        "(select run_uuid from tags where key = 'mlflow.parentRunId')",
    )
    return note


def children(root):
    return mlflow_rows(
        root,
        "select r.status, p.value from runs r join tags t on t.run_uuid = r.run_uuid "
        "and t.key = 'mlflow.parentRunId' join tags p on p.run_uuid = r.run_uuid "
        "and p.key = 'dpsweep.trial' order by cast(p.value as int)",
    )


def most_in_flight(files):
    """Return how many trials of a study held a reservation at once."""
    in_flight, most = set(), 0
    for record in read_log(files.ledger / "study.jsonl"):
        if record["kind"] == "reserve":
            in_flight.add(record["trial"])
        elif record["kind"] == "settle":
            in_flight.discard(record["trial"])
        most = max(most, len(in_flight))
    return most


def start(path):
    return subprocess.Popen(
        [sys.executable, "-m", "dpsweep", "run", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(journal, steps, process, trial=0):
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        records = read_log(journal)
        if any(r["event"] == "trial_report" and r["trial"] == trial and r["step"] >= steps
               for r in records):  # fmt: skip
            return
        time.sleep(0.1)
    pytest.fail(f"no report at step {steps}")


def openings(ledger):
    """Return trial -> the process of each actor that opened its ledger, in order."""
    return {
        int(path.stem.removeprefix("trial-")): [
            record["pid"]
            for record in read_log(path)
            if record["kind"] == "open" and "pid" in record
        ]
        for path in sorted(ledger.glob("trial-*.jsonl"), key=str)
    }


def holders(folder):
    """Return the processes that have a file of a folder open; of a folder in a database none."""
    found = set()
    if not isinstance(folder, Path):
        return found
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # it has ended since
            if Path(os.readlink(link)).parent == folder.resolve():
                found.add(int(link.parts[2]))
    return found


def kill_driver(process, ledger):
    """Kill a driver, which cannot clean up, and wait until its actors have ended with it."""
    actors = holders(ledger) - {process.pid}  # the ledger of a final run names no process
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    actors |= {pid for pids in openings(ledger).values() for pid in pids}
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in actors):
        assert time.monotonic() < deadline, f"of the actors {actors} one goes on without a driver"
        time.sleep(0.1)


def descendants(pid):
    """Return pid -> command of all processes that a process has started."""
    of_all = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            of_all[int(path.name)] = (
                parent,
                (path / "cmdline").read_bytes().split(b"\0")[0].decode(),
            )
        except OSError:
            continue
    mine, waiting = {}, [pid]
    while waiting:
        of = waiting.pop()
        for child, (parent, command) in of_all.items():
            if parent == of:
                mine[child] = command
                waiting.append(child)
    return mine


def run_and_kill(root, raw, folder, **wait):
    """Run a study, kill its driver at a report, and return its spec's file and a copy of it."""
    path = root / f"{raw['name']}.yaml"
    path.write_text(yaml.safe_dump(raw))
    process = start(path)
    files = root / "studies" / folder
    wait_for_steps(files / "journal.jsonl", process=process, **wait)
    kill_driver(process, files / "ledger")
    shutil.copytree(root / "studies", root / "copy")
    return path, root / "copy"

"""A small interrupted study, and the ways in which its files get hurt."""

import contextlib
import dataclasses
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
import yaml
from whole_studies import DELTA, make_spec

from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.study import Observer
from dpsweep.tracking.state import TrackingState

NAME, NUM_TRIALS, OPEN = "hurt", 4, 2  # of 4 trials two are finished; number 2 is interrupted


class _Interrupter(Observer):
    """Copies the study early in a trial, and interrupts it as Ctrl-C does at a later report."""

    def __init__(self, root, older):
        self.root, self.older, self.is_done = root, older, False

    def on_view(self, view):
        step = view.trials[OPEN].step if OPEN in view.trials else 0
        if step >= 8 and not self.older.exists():
            _copy_alive(self.root, self.older)
        if step >= 20 and not self.is_done:
            self.is_done = True
            signal.raise_signal(signal.SIGINT)


def _copy_alive(root, target):
    """Copy a study that is being written; its databases as sqlite3 backs them up."""

    def copy(source, to):
        if not source.endswith(".db"):
            return shutil.copy2(source, to)
        databases = (contextlib.closing(sqlite3.connect(path)) for path in (source, to))
        with next(databases) as db, next(databases) as backup:
            db.backup(backup)
        return to

    side_files = shutil.ignore_patterns("*-journal", "*-wal", "*-shm", ".*")
    for _ in range(100):  # a checkpoint that is replaced while it is copied is copied again
        try:
            shutil.copytree(root, target, ignore=side_files, copy_function=copy)
            return
        except shutil.Error:
            shutil.rmtree(target)
    raise AssertionError(f"{root} changes faster than it is copied")


def raw_spec(root: Path):
    """Return the study's spec, kept under ``root``."""
    spec = make_spec(root, NAME, report={"every_steps": 4}, search__num_trials=NUM_TRIALS)
    spec["search"]["space"] = {
        "method": "dp_sgd",
        "optim.lr": {"loguniform": [0.1, 4]},
        "train.max_steps": 40,
        "batch.expected": 64,
    }
    spec["privacy"] = {
        "delta": DELTA, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 9.0,
    }  # fmt: skip
    return spec


def build(root: Path) -> None:
    """Run two trials to their ends and a third one halfway; an older copy lies beside it."""
    from dpsweep.sweep import run_sweep

    older = root.parent / f"{root.name}-older"
    root.mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt, match="'hurt' is interrupted; run_sweep continues it"):
        run_sweep(SweepSpec(**raw_spec(root)), observer=_Interrupter(root, older))
    assert load_sweep(NAME, root=root / "studies").state == "interrupted"


def copy_study(root: Path, target: Path, *, was: Path | None = None) -> Path:
    """Copy all that a study has written, with paths that hold at the new place.

    Returns:
        A file with its spec.
    """
    was = was or root
    shutil.copytree(root, target)
    with sqlite3.connect(target / "mlflow.db") as db:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            db.execute(
                f"update {table} set {column} = replace({column}, ?, ?)", (str(was), str(target))
            )
    db.close()
    files = StudyFiles(target / "studies", NAME)
    state = TrackingState.load(files.tracking)
    moved = dataclasses.replace(state, store=state.store.replace(str(was), str(target)))
    moved.save(files.tracking)
    path = target / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(raw_spec(target)))
    return path


def spent(root: Path):
    """Return the epsilon of each trial, as its ledger has it."""
    ledger = StudyFiles(root / "studies", NAME).ledger
    return {
        number: epsilon_of(trial_spent(ledger, number), delta=DELTA) for number in range(OPEN + 1)
    }


def find(root: Path, name: str) -> Path:
    """Return the newest file of a study that a pattern names."""
    base = root if name == "mlflow.db" else root / "studies" / NAME
    return max(base.glob(name))


def hurt(path: Path, how: str, older: Path | None = None) -> None:
    """Damage one file or folder; ``older`` is the file that ``older`` puts in its place."""
    content = path.read_bytes() if path.is_file() else b""
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "overwritten":
        path.write_bytes(b"this is something else\n" * (1 + len(content) // 23))
    elif how == "older":
        assert older is not None
        shutil.copy(older, path)
    else:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if how == "directory":
            path.mkdir()
            (path / "something").write_text("else")

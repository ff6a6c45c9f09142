"""A study on disk: its frozen spec, its journal, its trials; everything a resume needs.

studies/<name>/
  spec.yaml             the spec as first launched
  journal.jsonl         what happened, one event a line; also the spool of the tracker
  ledger/               the write-ahead privacy ledger (``dpsweep.privacy.ledger``)
  trials/0007/          trial.json (method, hyperparameters, plan) and checkpoints
  optuna.db             the Optuna storage, for Optuna's own tools
  tracking.json         which journal events the tracker has, and its run ids
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpsweep.durable import DurableLog, FileLock, read_log, write_atomically
from dpsweep.errors import StudyError
from dpsweep.privacy.events import Plan
from dpsweep.registry import did_you_mean
from dpsweep.spec import SweepSpec
from dpsweep.trial import TrialReport, TrialState


@dataclass(frozen=True)
class TrialTask:
    """One admitted trial: what an actor needs to execute or continue it.

    Attributes:
        trial: Trial number.
        method: Name in the table of methods.
        hparams: Every hyperparameter of the method with its value.
        plan: The privacy events, frozen at admission.
        planned_epsilon: Epsilon of the whole plan at the study's delta (inf if not private).
        is_private: False for a method that makes no privacy claim.
    """

    trial: int
    method: str
    hparams: Mapping[str, Any]
    plan: Plan
    planned_epsilon: float
    is_private: bool

    def to_json(self) -> str:
        """Return the task as one JSON document."""
        return json.dumps(
            {
                "trial": self.trial,
                "method": self.method,
                "hparams": dict(self.hparams),
                "plan": self.plan.merged().to_json(),
                "planned_epsilon": self.planned_epsilon if self.is_private else None,
                "is_private": self.is_private,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> TrialTask:
        """Rebuild a task that ``to_json`` wrote."""
        raw = json.loads(text)
        epsilon = float("inf") if raw["planned_epsilon"] is None else raw["planned_epsilon"]
        return cls(**{**raw, "plan": Plan.from_json(raw["plan"]), "planned_epsilon": epsilon})


@dataclass
class TrialView:
    """What the journal says of one trial."""

    trial: int
    hparams: dict[str, Any] = field(default_factory=dict)
    state: TrialState = TrialState.RUNNING
    reason: str = ""
    step: int = 0
    num_steps: int = 0
    epsilon: float | None = 0.0
    charged: int = 0
    sampling: str = "none"
    value: float | None = None
    best_step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class StudyView:
    """What the journal says of a study; ``model_uris`` holds the models logged to the tracker."""

    trials: dict[int, TrialView] = field(default_factory=dict)
    state: str = "new"
    first_ms: int = 0
    last_ms: int = 0
    num_infeasible: int = 0
    model_uris: dict[int, str] = field(default_factory=dict)

    def count(self, state: TrialState) -> int:
        """Return how many trials are in ``state``."""
        if state is TrialState.INFEASIBLE:
            return self.num_infeasible
        return sum(trial.state is state for trial in self.trials.values())

    def charged(self) -> dict[int, int]:
        """Return the number of events each trial is known to have charged."""
        return {number: trial.charged for number, trial in self.trials.items()}

    def finished(self) -> Iterator[TrialView]:
        """Yield the trials that ran to their end and have a score."""
        for trial in self.trials.values():
            if trial.state is TrialState.FINISHED and trial.value is not None:
                yield trial


def fold(records: list[dict[str, Any]]) -> StudyView:
    """Return the state of a study from its journal; a repeated report changes nothing."""
    view = StudyView()
    for record in records:
        _fold(view, record)
    return view


def _fold(view: StudyView, record: Mapping[str, Any]) -> None:
    view.first_ms = view.first_ms or record["time_ms"]
    view.last_ms = record["time_ms"]
    event = record["event"]
    if event == "study_started":
        view.state = "running"
    elif event == "study_ended":
        view.state = record["state"]
    elif event == "model_logged":
        view.model_uris[record["trial"]] = record["uri"]
    elif event == "trial_infeasible":
        view.num_infeasible += 1
    else:
        _fold_trial(view, record)


def _fold_trial(view: StudyView, record: Mapping[str, Any]) -> None:
    trial = view.trials.setdefault(record["trial"], TrialView(record["trial"]))
    if record["event"] == "trial_started":
        trial.hparams = record["hparams"]
        trial.num_steps = record["plan"]["steps"]
        trial.sampling = record["tags"]["dp.sampling"]
        trial.state = TrialState.RUNNING
        return
    trial.step, trial.epsilon = record["step"], record["epsilon"]
    trial.value, trial.best_step = record["value"], record["best_step"]
    trial.charged = max(trial.charged, record["charged"])
    if record["metrics"]:
        trial.metrics = record["metrics"]
        if not trial.reports or trial.reports[-1]["step"] < trial.step:
            point = {"step": trial.step, "epsilon": trial.epsilon, "metrics": trial.metrics}
            trial.reports.append(point)
    if record["event"] == "trial_ended":
        trial.state, trial.reason = TrialState(record["state"]), record["reason"]


class Observer:
    """Watches a sweep, called on the driver's thread; this one says nothing."""

    def on_message(self, text: str) -> None:
        """Something worth a line has happened."""

    def on_view(self, view: StudyView) -> None:
        """The study has moved on."""


class StudyFiles:
    """The paths of a study; reading needs no lock."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = root.resolve() / name
        self.journal = self.path / "journal.jsonl"
        self.ledger = self.path / "ledger"
        self.spec = self.path / "spec.yaml"
        self.optuna = self.path / "optuna.db"
        self.tracking = self.path / "tracking.json"

    def trial(self, trial: int) -> Path:
        """Return the directory of one trial."""
        return self.path / "trials" / f"{trial:04d}"

    def task(self, trial: int) -> TrialTask:
        """Return an admitted trial."""
        return TrialTask.from_json((self.trial(trial) / "trial.json").read_text())

    def view(self) -> StudyView:
        """Return what the journal says now."""
        return fold(read_log(self.journal))

    @classmethod
    def find(cls, name: str, root: Path) -> StudyFiles:
        """Return an existing study.

        Raises:
            StudyError: There is none of that name under ``root``.
        """
        files = cls(root, name)
        if not files.spec.exists():
            known = sorted(path.parent.name for path in root.glob("*/spec.yaml"))
            hint = did_you_mean(name, known)
            raise StudyError(
                f"no study {name!r} in {root}/",
                because=f"studies there: {', '.join(known) or 'none'}",
                fix=(hint + " " if hint else "") + "run `dpsweep run SPEC`, or give --root DIR",
            )
        return files


# What may differ between two launches of one study: nothing that changes what a trial is.
_FREE = {"resources", "tracking", "cluster", "storage"}
_FREE_SEARCH = {"num_trials", "max_concurrent"}


def _differences(old: SweepSpec, new: SweepSpec) -> list[str]:
    before, after = old.to_dict(), new.to_dict()
    changed = []
    for key in sorted(set(before) | set(after)):
        if key in _FREE or before.get(key) == after.get(key):
            continue
        if isinstance(before.get(key), dict) and isinstance(after.get(key), dict):
            for part in sorted(set(before[key]) | set(after[key])):
                free = key == "search" and part in _FREE_SEARCH
                if not free and before[key].get(part) != after[key].get(part):
                    changed.append(f"{key}.{part}")
        else:
            changed.append(key)
    return changed


class Study:
    """A study open for writing: one process at a time, until ``close``.

    Attributes:
        view: What the journal says, kept up to date.

    Args:
        spec: The spec to launch or continue.
    Raises:
        StudyError: The study runs in another process, or was launched from another spec.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self.spec = spec
        self.files = StudyFiles(Path(spec.storage.path).resolve(), spec.name)
        try:
            self._lock = FileLock(self.files.path / "lock", holder=f"study {spec.name!r}")
        except OSError as error:
            raise StudyError(
                f"cannot write to {self.files.path}",
                because=error.strerror,
                fix="set storage.path to a directory that can be written to",
            ) from error
        try:
            self._freeze_spec()
            self._journal = DurableLog(self.files.journal)
            self.view = fold(self._journal.records)
        except BaseException:
            self._lock.release()
            raise

    def _freeze_spec(self) -> None:
        if not self.files.spec.exists():
            if any(self.files.ledger.glob("*")):
                raise StudyError(
                    f"{self.files.path} has a privacy ledger but no spec.yaml",
                    because="the spec that its charges belong to is lost",
                    fix="restore it, or give the new study another `name:`",
                )
            write_atomically(self.files.spec, self.spec.to_yaml().encode())
            return
        changed = _differences(SweepSpec.from_yaml(self.files.spec), self.spec)
        if changed:
            raise StudyError(
                f"study {self.spec.name!r} was launched from another spec",
                because=f"changed since then: {', '.join(changed)}",
                fix="give the new study another `name:`, or undo the change to continue this one "
                "(num_trials, max_concurrent, resources, tracking and cluster may change)",
            )
        write_atomically(self.files.spec, self.spec.to_yaml().encode())

    def check_data(self, content_hash: str) -> None:
        """Refuse other records than those of the first launch.

        The hash depends on private records, so it stays in the study directory.

        Raises:
            StudyError: The dataset has changed.
        """
        path = self.files.path / "data.sha256"
        if not path.exists():
            write_atomically(path, f"{content_hash}\n".encode())
        elif path.read_text().strip() != content_hash:
            raise StudyError(
                f"study {self.spec.name!r} was launched on other records",
                because="the SHA-256 of its data has changed",
                fix="restore the data, or give the new study another `name:`",
            )

    def write(self, event: str, **payload: Any) -> None:
        """Append one event to the journal, durably, and bring the view up to date."""
        entry = {"time_ms": time.time_ns() // 1_000_000, "event": event, **payload}
        _fold(self.view, self._journal.append(entry))

    def write_task(self, task: TrialTask) -> None:
        """Store an admitted trial where its actor finds it."""
        path = self.files.trial(task.trial) / "trial.json"
        if not path.exists():
            write_atomically(path, task.to_json().encode())

    def write_report(self, report: TrialReport) -> None:
        """Append a trial's report."""
        self.write("trial_report", **_report_payload(report))

    def write_end(
        self, report: TrialReport, state: TrialState, reason: str, artifacts: list[str]
    ) -> None:
        """Append a trial's end, with its last report."""
        self.write(
            "trial_ended",
            **_report_payload(report),
            state=state.value,
            reason=reason,
            tags={},
            artifacts=artifacts,
        )

    def close(self) -> None:
        """Release journal and lock."""
        self._journal.close()
        self._lock.release()


def _report_payload(report: TrialReport) -> dict[str, Any]:
    finite = report.epsilon != float("inf")
    return {
        "trial": report.trial,
        "step": report.step,
        "epsilon": report.epsilon if finite else None,
        "metrics": dict(report.metrics),
        "value": report.value,
        "best_step": report.best_step,
        "charged": report.charged,
        "wall_s": round(report.wall_s, 3),
    }

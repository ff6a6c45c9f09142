"""A study on disk: its frozen spec, its journal, its trials; everything a resume needs.

studies/<name>/
  spec.yaml             the spec as first launched
  journal.jsonl         what happened, one event a line; also the spool of the tracker
  ledger/               the write-ahead privacy ledger (``dpsweep.privacy.ledger``)
  trials/0007/          trial.json (method, hyperparameters, plan) and checkpoints
  sealed/               accounting select only, while it runs: a study whose losers nobody sees
  optuna.db             the Optuna storage, for Optuna's own tools
  tracking.json         which journal events the tracker has, and its run ids
  decisions.csv         why the scheduler stopped, paused or continued each trial
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from dpsweep.durable import DurableLog, FileLock, read_log, write_atomically
from dpsweep.errors import StudyError
from dpsweep.journal import StudyView, fold, fold_one, replay, report_payload
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
        validation_plan: Noisy releases of the score, at most one a report.
        records: ``public`` for a trial that trains on public records only, which costs nothing.
        seed: Seed of its public randomness where it is not the study's (and then kept secret).
        inherited: Events of the run that its model starts from, up to the release it starts at.
            They stand on that run's ledger: the study pays them once, while every trial's epsilon
            covers them.
        releases: Epsilons, ascending, whose last models other trials may start from: of a start.
    """

    trial: int
    method: str
    hparams: Mapping[str, Any]
    plan: Plan
    planned_epsilon: float
    is_private: bool
    validation_plan: Plan = field(default_factory=Plan)
    records: Literal["private", "public"] = "private"
    seed: int | None = None
    inherited: Plan = field(default_factory=Plan)
    releases: tuple[float, ...] = ()

    @property
    def charges(self) -> Plan:
        """What its positions charge: nothing, if it trains on public records in their place."""
        return self.plan if self.records == "private" else self.plan.labelled("public")

    @property
    def full_plan(self) -> Plan:
        """Everything the trial may charge: its positions and the releases of its score."""
        return self.charges + self.validation_plan

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
                "validation_plan": self.validation_plan.merged().to_json(),
                "records": self.records,
                "seed": self.seed,
                "inherited": self.inherited.merged().to_json(),
                "releases": list(self.releases),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> TrialTask:
        """Rebuild a task that ``to_json`` wrote."""
        raw = json.loads(text)
        epsilon = float("inf") if raw["planned_epsilon"] is None else raw["planned_epsilon"]
        names = ("plan", "validation_plan", "inherited")
        plans = {key: Plan.from_json(raw.get(key, [])) for key in names}
        releases = tuple(raw.get("releases", ()))
        return cls(**{**raw, **plans, "releases": releases, "planned_epsilon": epsilon})


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
        """Return an admitted trial.

        Raises:
            StudyError: Its directory was deleted or damaged.
        """
        path = self.trial(trial) / "trial.json"
        try:
            return TrialTask.from_json(path.read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StudyError(
                f"trial {trial} cannot be continued: {path} is missing or damaged",
                because="what it has spent is on the ledger, but its plan and model are lost",
                fix="restore it, or start a new study under another name",
            ) from error

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
        # A sealed study has another name than its directory, and is nobody's to open.
        if not files.spec.exists() or _name_in(files.spec) != name:
            known = sorted(path.parent.name for path in root.glob("*/spec.yaml"))
            hint = did_you_mean(name, known)
            raise StudyError(
                f"no study {name!r} in {root}/",
                because=f"studies there: {', '.join(known) or 'none'}",
                fix=(hint + " " if hint else "") + "run `dpsweep run SPEC`, or give --root DIR",
            )
        return files


def _name_in(path: Path) -> Any:
    """Return the name that a spec file gives, whatever version of this package wrote it."""
    return (yaml.safe_load(path.read_text()) or {}).get("name")


_DAY_MS = 86_400_000
# What may differ between two launches of one study: nothing that changes what a trial is.
_FREE = {"resources", "tracking", "cluster", "storage"}
_FREE_SEARCH = {"num_trials", "max_concurrent", "max_time"}


def _anchored(spec: SweepSpec) -> SweepSpec:
    """Return the spec with its databases and ledgers by paths that hold in every directory."""
    start, uri = "sqlite:///", spec.tracking.uri
    if uri is not None and uri.startswith(start):
        path = Path(uri.removeprefix(start)).resolve()
        tracking = spec.tracking.model_copy(update={"uri": f"{start}{path}"})
        spec = spec.model_copy(update={"tracking": tracking})
    if spec.privacy.dataset_ledger is not None:
        path = Path(spec.privacy.dataset_ledger).resolve()
        privacy = spec.privacy.model_copy(update={"dataset_ledger": str(path)})
        spec = spec.model_copy(update={"privacy": privacy})
    return spec


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
        files: Where, if not where the spec says.
    Raises:
        StudyError: The study runs in another process, or was launched from another spec.
    """

    def __init__(self, spec: SweepSpec, *, files: StudyFiles | None = None) -> None:
        self.spec = spec
        self.files = files or StudyFiles(Path(spec.storage.path), spec.name)
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
            write_atomically(self.files.spec, _anchored(self.spec).to_yaml().encode())
            return
        old = SweepSpec.from_yaml(self.files.spec)
        changed = _differences(_anchored(old), _anchored(self.spec))
        if changed:
            raise StudyError(
                f"study {self.spec.name!r} was launched from another spec",
                because=f"changed since then: {', '.join(changed)}",
                fix="give the new study another `name:`, or undo the change to continue this one "
                "(num_trials, max_concurrent, max_time, resources, tracking, cluster may change)",
            )
        write_atomically(self.files.spec, _anchored(self.spec).to_yaml().encode())

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
        now = time.time_ns() // 1_000_000
        if self.spec.privacy.accounting == "select":
            now -= now % _DAY_MS  # the run time would tell the number of trials
        entry = {"time_ms": now, "event": event, **payload}
        fold_one(self.view, self._journal.append(entry))

    def write_task(self, task: TrialTask) -> None:
        """Store an admitted trial where its actor finds it."""
        path = self.files.trial(task.trial) / "trial.json"
        if not path.exists():
            write_atomically(path, task.to_json().encode())

    def write_report(self, report: TrialReport) -> None:
        """Append a trial's report."""
        self.write("trial_report", **report_payload(report))

    def write_end(
        self,
        report: TrialReport,
        state: TrialState,
        reason: str,
        *,
        released: str,
        artifacts: list[str],
    ) -> None:
        """Append a trial's end, with its last report and what its epsilon is about."""
        self.write(
            "trial_ended",
            **report_payload(report),
            state=state.value,
            reason=reason,
            tags={"dp.released": released},
            artifacts=artifacts,
        )

    def last_report(self, trial: int) -> TrialReport:
        """Return where a trial stood when it last reported."""
        view = self.view.trials[trial]
        return TrialReport(
            trial=trial,
            step=view.step,
            metrics=view.metrics,
            epsilon=math.inf if view.epsilon is None else view.epsilon,
            rung=view.rung,
            charged=view.charged,
            value=view.value,
            best_step=view.best_step,
        )

    def reports(self) -> Iterator[TrialReport]:
        """Yield the reports so far, in their order."""
        return replay(self._journal.records)

    def close(self) -> None:
        """Release journal and lock."""
        self._journal.close()
        self._lock.release()

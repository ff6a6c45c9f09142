"""A study on disk: its frozen spec, its journal, its trials; everything a resume needs.

studies/<name>/
  spec.yaml             the spec as first launched
  journal.jsonl         what happened, one event a line; also the spool of the tracker
  ledger/               the write-ahead privacy ledger (``dpsweep.ledgers.trial``)
  trials/0007/          trial.json (method, hyperparameters, plan) and checkpoints, checksummed
  sealed/               accounting select only, while it runs: a study whose losers nobody sees
  optuna.db             the Optuna storage, for Optuna's own tools
  tracking.json         which journal events the tracker has, and its run ids
  decisions.csv         why the scheduler stopped, paused or continued each trial
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dpsweep.foundation.durable import (
    DurableLog,
    FileLock,
    read_log,
    write_atomically,
)
from dpsweep.foundation.errors import StudyError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.ledgers.trial import STUDY_FILE
from dpsweep.spec.base import seen
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import Event, TrialEnded, TrialReported
from dpsweep.study.journal import StudyView, fold, fold_one, replay
from dpsweep.study.trial import TrialReport, TrialState, TrialTask, read_task


class Observer:
    """Watches a sweep, called on the driver's thread; this one says nothing."""

    def on_message(self, text: str) -> None:
        """Something worth a line has happened."""

    def on_stage(self, text: str) -> None:
        """Something that takes seconds begins."""

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
        return read_task(path)

    def view(self) -> StudyView:
        """Return what the journal says now."""
        return fold(read_log(self.journal))

    def frozen(self) -> dict[str, Any]:
        """Return the frozen spec as plain data, whatever version of this package wrote it.

        Raises:
            StudyError: Its file is damaged.
        """
        try:
            raw = yaml.safe_load(self.spec.read_text())
        except (OSError, ValueError, yaml.YAMLError):
            raw = None
        if not isinstance(raw, dict):
            raise StudyError(
                f"{self.spec} is damaged: it is not the spec that was written there",
                because="what the study may claim is read from it",
                fix="restore it; the tracking store has a copy, sweep.yaml of the study's run",
            )
        return raw

    @classmethod
    def find(cls, name: str, root: Path) -> StudyFiles:
        """Return an existing study.

        Raises:
            StudyError: There is none of that name under ``root``.
        """
        files = cls(root, name)
        # A sealed study has another name than its directory, and is nobody's to open.
        if not files.spec.exists() or files.frozen().get("name") != name:
            known = sorted(path.parent.name for path in root.glob("*/spec.yaml"))
            hint = did_you_mean(name, known)
            raise StudyError(
                f"no study {name!r} in {root}/",
                because=f"studies there: {', '.join(known) or 'none'}",
                fix=(hint + " " if hint else "") + "run `dpsweep run SPEC`, or give --root DIR",
            )
        return files


_DAY_MS = 86_400_000
# Of what ``data.sha256`` holds: names of classes are part of it. Before, it held bare digits.
_HASH_VERSION = "names"
_IS_HASH = re.compile(rf"({_HASH_VERSION} )?[0-9a-f]{{64}}")
_KEEP_DATA = "restore the file, or give the new study another `name:`"
# What may differ between two launches of one study: nothing that changes what a trial is.
_FREE = {"resources", "tracking", "cluster", "storage"}
_FREE_SEARCH = {"num_trials", "max_concurrent", "max_time"}


def anchored(spec: SweepSpec) -> SweepSpec:
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


# What a study has only once its ledger is there.
_AFTER_THE_LEDGER = ("trials", "optuna.db", "tracking.json", "sealed", "ray", "decisions.csv")


def enforced_terms(spec: SweepSpec) -> dict[str, Any]:
    """Return what a study's claim rests on, by dotted key: which records are private, what is paid.

    It is written to the study's ledger at the first launch and compared ever after.
    """
    tree = anchored(spec).to_dict()
    terms = {"privacy_unit": spec.privacy_unit}
    for section in ("privacy", "data"):
        terms |= _leaves(section, tree[section])
    return terms


def _leaves(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: value}
    return {name: leaf for k, v in value.items() for name, leaf in _leaves(f"{key}.{k}", v).items()}


def _differing(before: Any, after: Any, path: str) -> list[str]:
    """Return what differs, down to single keys, each with its old and its new value."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        found = [_differing(before.get(k, _NO), after.get(k, _NO), f"{path}.{k}") for k in keys]
        return [leaf for leaves in found for leaf in leaves]
    if before == after:
        return []
    shown = ["nothing" if value is _NO else seen(value) for value in (before, after)]
    return [f"{path} ({shown[0]} -> {shown[1]})"]


_NO = object()


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
                    old_part, new_part = before[key].get(part, _NO), after[key].get(part, _NO)
                    changed += _differing(old_part, new_part, f"{key}.{part}")
        else:
            changed += _differing(before.get(key, _NO), after.get(key, _NO), key)
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
        self._writing = threading.RLock()
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
            write_atomically(self.files.spec, anchored(self.spec).to_yaml().encode())
            return
        self.files.frozen()
        old = SweepSpec.from_yaml(self.files.spec, is_stored=True)
        changed = _differences(anchored(old), anchored(self.spec))
        if changed:
            raise StudyError(
                f"study {self.spec.name!r} was launched from another spec",
                because=f"changed since then: {', '.join(changed)}",
                fix="give the new study another `name:`, or undo the change to continue this one "
                "(num_trials, max_concurrent, max_time, resources, tracking, cluster may change)",
            )
        write_atomically(self.files.spec, anchored(self.spec).to_yaml().encode())

    def check_remnants(self) -> None:
        """Refuse a directory without a study ledger that an earlier study has left things in.

        What its trials have spent is not known any more, and a sampler, or a model in its place,
        would carry it into a study that does not pay for it.

        Raises:
            StudyError: It has.
        """
        if read_study_state(self.files.ledger).study_id is not None:
            return
        left = [name for name in _AFTER_THE_LEDGER if (self.files.path / name).exists()]
        if self.view.trials:
            left.append(self.files.journal.name)
        if left:
            raise StudyError(
                f"{self.files.path} has no privacy ledger, but {', '.join(left)} of a study",
                because=f"{self.files.ledger.name}/{STUDY_FILE} was deleted; what that study has "
                "spent is not known any more",
                fix="restore it, or give the new study another `name:`",
            )

    def check_data(self, content_hash: str, *, old_hash: str = "") -> str:
        """Refuse other records, or other names of classes, than those of the first launch.

        The hash depends on private records, so it stays in the study directory, in a file of its
        owner. It has no key, which would have to lie beside it: a copy of the directory confirms a
        guess of all records (README, "Not covered").

        Args:
            content_hash: ``SweepData.content_hash``.
            old_hash: ``SweepData.old_hash``: all that studies of earlier versions know.
        Returns:
            What to say of a study that knew no names of classes and knows them now; else empty.
        Raises:
            StudyError: The dataset has changed, or the hash is damaged or missing.
        """
        path = self.files.path / "data.sha256"
        try:
            known = path.read_text(errors="replace").strip()
        except FileNotFoundError:
            known = ""
        except OSError as error:
            raise StudyError(f"{path} cannot be read: {error.strerror}", fix=_KEEP_DATA) from error
        current = f"{_HASH_VERSION} {content_hash}"
        if known == current:
            return ""
        is_old = bool(old_hash) and known == old_hash
        if not is_old and (known or self.view.trials) and not _IS_HASH.fullmatch(known):
            what = "is damaged" if known else "is missing"
            raise StudyError(
                f"{path} {what}: whether the study's data are the same cannot be known",
                fix=_KEEP_DATA,
            )
        if known and not is_old:
            raise StudyError(
                f"study {self.spec.name!r} was launched on other records",
                because="the SHA-256 of its data and of the names of its classes has changed",
                fix="restore the data, or give the new study another `name:`",
            )
        write_atomically(path, f"{current}\n".encode())
        return "an earlier version began it without the names of its classes" if is_old else ""

    def write(self, event: Event) -> None:
        """Append one event to the journal, durably, and bring the view up to date."""
        with self._writing:
            now = time.time_ns() // 1_000_000
            if self.spec.privacy.accounting == "select":
                now -= now % _DAY_MS  # the run time would tell the number of trials
            fold_one(self.view, self._journal.append({"time_ms": now, **event.to_json()}))

    def hold_others(self) -> None:
        """Let this thread alone write from now on: it writes the end, and the process ends."""
        self._writing.acquire()

    def write_task(self, task: TrialTask) -> None:
        """Store an admitted trial where its actor finds it."""
        path = self.files.trial(task.trial) / "trial.json"
        if not path.exists():
            write_atomically(path, task.to_json().encode())

    def write_report(self, report: TrialReport) -> None:
        """Append a trial's report."""
        self.write(TrialReported.of(report))

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
        ended = {"state": state.value, "reason": reason}
        tags = {"dp.released": released}
        self.write(TrialEnded.of(report, **ended, tags=tags, artifacts=artifacts))

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
            delivered=view.delivered,
        )

    def reports(self) -> Iterator[TrialReport]:
        """Yield the reports so far, in their order."""
        return replay(self._journal.records)

    def close(self) -> None:
        """Release journal and lock."""
        self._journal.close()
        self._lock.release()

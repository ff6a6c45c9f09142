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
from dataclasses import replace

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import DamagedStudyError, StudyError
from dpsweep.foundation.logs import lock, open_log
from dpsweep.foundation.validate import of_kind
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import Event, TrialEnded, TrialReported, TrialStarted
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView, fold, fold_one, replay
from dpsweep.study.launched import (
    anchored,
    has_begun,
    launched_spec,
    refuse_other_spec,
    refuse_remnants,
)
from dpsweep.study.trial import TrialReport, TrialState, TrialTask


class Observer:
    """Watches a sweep, from the driver's thread; this one says nothing.

    ``on_message`` is called from others, too: that of the tracking store, the one that calls trials
    back, and the one that ends a launch which does not end in time.
    """

    def on_message(self, text: str) -> None:
        """Something worth a line has happened."""

    def on_stage(self, text: str) -> None:
        """Something that takes seconds begins."""

    def on_view(self, view: StudyView) -> None:
        """The study has moved on."""


def watching(observer: Observer | None) -> Observer:
    """Return who watches a sweep: the one that is named, or one that says nothing.

    Raises:
        BadInputError: It is no ``Observer``; a class of them is none.
    """
    fix = "observer=Mine(), with class Mine(dpsweep.Observer)"
    of_kind("a sweep is watched by an Observer", observer, (Observer, type(None)), fix)
    return observer or Observer()


_DAY_MS = 86_400_000
# Of what ``data.sha256`` holds: names of classes are part of it. Before, it held bare digits.
_HASH_VERSION = "names"
_IS_HASH = re.compile(rf"({_HASH_VERSION} )?[0-9a-f]{{64}}")
_HASH_FILE = "data.sha256"
_KEEP_DATA = "restore the file, or give the new study another `name:`"


def is_data_of(files: StudyFiles, content_hash: str, old_hash: str = "") -> bool:
    """Say whether records, and names of classes, are those that a study was launched on.

    Args:
        files: Of the study.
        content_hash: ``SweepData.content_hash``.
        old_hash: ``SweepData.old_hash``.
    """
    try:
        stored = (files.path / _HASH_FILE).read_text(errors="replace").strip()
    except OSError:
        return False
    return stored == f"{_HASH_VERSION} {content_hash}" or (bool(old_hash) and stored == old_hash)


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
        self.files = files or StudyFiles.of(spec)
        try:
            self._lock = lock(self.files.lock, holder=f"study {spec.name!r}")
        except OSError as error:
            raise StudyError(
                f"cannot write to {self.files.path}",
                because=error.strerror,
                fix="set storage.path to a directory that can be written to",
            ) from error
        self._writing = threading.RLock()
        #: Epsilon that is stated of every trial from now on; None: its own.
        self.stated_epsilon: float | None = None
        try:
            self._check_spec()
            if not self.has_begun or not self.files.spec.exists():
                self.keep_spec()
            self._journal = open_log(self.files.journal)
            self.view = fold(self._journal.records)
        except BaseException:
            self._lock.release()
            raise

    @property
    def has_begun(self) -> bool:
        """Whether anything may have been charged to it; until then it is as if it were not there.

        A launch may end before, where its cluster does not answer.
        """
        return has_begun(self.files)

    def said_running(self, is_new: bool) -> str:
        """Return what is said when its trials begin: where it is, so that no other is begun."""
        which = "a new study in" if is_new else "the study that goes on in"
        where = f"{which} {self.files.path}"
        return f"running trials of {where}; Ctrl-C is safe, the same command continues"

    def keep_spec(self) -> None:
        """Keep the spec as that of the study: what a launch may change is changed from now on.

        A new study keeps it when it is opened. A later launch calls this once it is not refused;
        where nothing is changed the file stays, for another version may not know all of our keys.
        """
        spec = anchored(self.spec)
        if self.files.spec.exists() and launched_spec(self.files).to_dict() == spec.to_dict():
            return
        write_atomically(self.files.spec, spec.to_yaml().encode())

    def _check_spec(self) -> None:
        refuse_other_spec(self.spec, self.files)
        if not self.files.spec.exists():
            if any(self.files.ledger.glob("*")):
                raise DamagedStudyError(
                    f"{self.files.ledger.parent} has a privacy ledger, and {self.files.path} no "
                    "spec.yaml",
                    because="the spec that its charges belong to is lost, or it is another's study",
                    fix="restore it, or give the new study another `name:`",
                )
            refuse_remnants(self.files)  # before a spec says that they are of this study

    def check_remnants(self) -> None:
        """Refuse a directory without a study ledger that an earlier study has left things in.

        What its trials have spent is not known any more, and a sampler, or a model in its place,
        would carry it into a study that does not pay for it.

        Raises:
            DamagedStudyError: It has.
        """
        refuse_remnants(self.files, [self.files.journal.name] if self.view.trials else [])

    def check_data(self, content_hash: str, *, old_hash: str = "") -> str:
        """Refuse other records, or other names of classes, than those of the first launch.

        The hash depends on private records, so it stays in the study directory, in a file of its
        owner. It has no key, which would have to lie beside it: a copy of the directory confirms a
        guess of all records (docs/concepts.md, "Not covered").

        Args:
            content_hash: ``SweepData.content_hash``.
            old_hash: ``SweepData.old_hash``: all that studies of earlier versions know.
        Returns:
            What to say of a study that knew no names of classes and knows them now; else empty.
        Raises:
            StudyError: The dataset has changed.
            DamagedStudyError: The hash is damaged, missing, or closed to this user.
        """
        path, state = self.files.path / _HASH_FILE, "is damaged"
        try:
            stored = path.read_text(errors="replace").strip()
        except FileNotFoundError:
            stored, state = "", "is missing"
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror}"
            raise DamagedStudyError(problem, fix=_KEEP_DATA) from error
        current = f"{_HASH_VERSION} {content_hash}"
        if stored == current:
            return ""
        if not self.has_begun:
            stored = ""
        is_old = bool(old_hash) and stored == old_hash
        if not is_old and (stored or self.view.trials) and not _IS_HASH.fullmatch(stored):
            raise DamagedStudyError(
                f"{path} {state}: whether the study's data are the same cannot be known",
                fix=_KEEP_DATA,
            )
        if stored and not is_old:
            raise StudyError(
                f"study {self.spec.name!r} was launched on other records",
                because="the SHA-256 of its data and of the names of its classes has changed",
                fix="restore the data, or give the new study another `name:` (a part called "
                "`validation`, which earlier versions passed over, may be what is new)",
            )
        write_atomically(path, f"{current}\n".encode())
        return "an earlier version began it without the names of its classes" if is_old else ""

    def write(self, event: Event) -> None:
        """Append one event to the journal, durably, and bring the view up to date."""
        with self._writing:
            now = time.time_ns() // 1_000_000
            if self.spec.privacy.mode.is_sealed:
                now -= now % _DAY_MS  # the run time would tell the number of trials
            event = self._stated(event)
            fold_one(self.view, self._journal.append({"time_ms": now, **event.to_json()}))

    def _stated(self, event: Event) -> Event:
        """Return an event with the epsilon that is stated of its trial."""
        if self.stated_epsilon is None:
            return event
        if isinstance(event, TrialStarted):
            return replace(event, plan={**event.plan, "epsilon": self.stated_epsilon})
        if isinstance(event, (TrialReported, TrialEnded)):
            return replace(event, epsilon=self.stated_epsilon)
        return event

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

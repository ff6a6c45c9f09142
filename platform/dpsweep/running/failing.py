"""Failing trials: why a process died too often, and a search that only fails and so ends."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from dpsweep.foundation.errors import (
    FOLDER_GONE,
    ChangedCodeError,
    FailingSearchError,
    StorageError,
    StudyError,
    SweepError,
)
from dpsweep.foundation.words import counted
from dpsweep.search.sources import TaskSource
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.spec.launching import ATTENDED, UNATTENDED
from dpsweep.study.events import TrialCharged, or_none
from dpsweep.study.files import StudyFiles
from dpsweep.study.study import Study
from dpsweep.study.trial import MOSTLY_FAILED, TrialReport, TrialState, TrialTask
from dpsweep.trainables.execution.memory import MEMORY_ADVICE
from dpsweep.trainables.networks.own_models import OLD_CODE

#: A launch ends once this many of its trials have ended and this share of them has failed.
ENOUGH_ENDED, TOO_MANY_FAILED = 10, 0.9
_PUT_RIGHT = "make room, or put the file back or right, and run the same command again"
_SAFE = "; what was charged and written before is safe"


def refuse_unwritten(report: TrialReport, study: Study) -> None:
    """End a launch whose trial cannot go on; the trial is where it were if it had been killed.

    What its process knows that it has charged goes into the journal first: an older copy of its
    ledger, put in the place of one that is gone, is refused by that.

    Args:
        report: The trial's last one.
        study: Open for writing.
    Raises:
        StorageError: It cannot write, or its ledger or the study's cannot be read, or is gone.
        ChangedCodeError: Its own network is not the one that it was admitted with.
    """
    if report.unwritten:
        _note_charges(report, study)
        raise StorageError(report.unwritten, fix=_fix_of(study.files))
    if report.changed:
        raise ChangedCodeError(report.changed, fix=OLD_CODE)


def _fix_of(files: StudyFiles) -> str:
    """Return what to do; where the account itself is gone, nothing is called safe.

    Of a folder that was moved away, something may have made another one in its place since.
    """
    logs = [log for log in (files.journal, files.ledger) if isinstance(log, Path)]
    if all(log.exists() for log in logs):
        return _PUT_RIGHT + _SAFE
    return _PUT_RIGHT if files.journal.exists() else FOLDER_GONE


def _note_charges(report: TrialReport, study: Study) -> None:
    trial = study.view.trials[report.trial]
    if report.charged > trial.charged:
        step, epsilon = max(trial.step, trial.kept_step), or_none(report.epsilon)
        with suppress(SweepError):  # nothing can be written any more
            study.write(TrialCharged(report.trial, step, report.charged, epsilon))


class Deaths:
    """What is known of the deaths of trials' processes.

    Args:
        resources: Of one trial, and how often one may die.
    """

    def __init__(self, resources: ResourcesSpec) -> None:
        self._resources = resources
        self._hung: Counter[int] = Counter()

    def note_hang(self, trial: int) -> str:
        """Note that a trial's process is ended because it hangs; return a line on that."""
        self._hung[trial] += 1
        minutes = self._resources.hang_minutes
        return f"trial {trial}: no report for {minutes:g} minutes; its process is ended"

    def reason(self, trial: int) -> str:
        """Return why a trial is given up whose process has died once too often."""
        times = counted(self._resources.max_failures, "time")
        reason, advice = f"its process died more than {times}", MEMORY_ADVICE
        if not self._hung[trial]:
            return f"{reason}, perhaps for want of memory; {advice}"
        hung = counted(self._hung[trial], "time")
        return (
            f"{reason}, and was ended {hung} after {self._resources.hang_minutes:g} minutes "
            "without a report; fix: raise resources.hang_minutes or report.points, or find what "
            "hangs"
        )


def refuse_repetition(study: Study) -> None:
    """Refuse a launch that a scheduler has begun by itself after one that only failed.

    Nobody has mended the cause: each retry would be charged for ten more trials. A person's launch
    has no ``DPSWEEP_UNATTENDED``, or 0 in it, and goes on.

    Args:
        study: Open for writing, before anything of this launch is in its journal.
    Raises:
        StudyError: It is such a launch.
    """
    view, name = study.view, study.spec.name
    has_only_failed = view.state == "failed" and view.end_reason == MOSTLY_FAILED
    if has_only_failed and os.environ.get(UNATTENDED, "") not in ATTENDED:
        raise StudyError(
            f"nearly all trials of its last launch failed: study {name!r} starts nothing",
            because=f"this launch may have begun by itself ({UNATTENDED} is set), with nothing "
            "mended, and its trials would be charged again",
            fix="mend why they failed (`dpsweep status`), then submit it once more: to Kubernetes "
            "with --set cluster.kuberay.retries=0; or run it without that variable",
        )


class FailingSource:
    """A source that hands out no more when nearly all trials of this launch have failed.

    Trials that run go on to their ends. Those of earlier launches do not count: whoever has
    mended the cause can run the same command again.

    Args:
        source: Where tasks come from.
        is_hidden: True where nothing may be told of trials (accounting select): then it counts
            nothing.
    """

    def __init__(self, source: TaskSource, *, is_hidden: bool) -> None:
        self._source, self._is_hidden = source, is_hidden
        self._num_ended = 0
        self._reasons: Counter[str] = Counter()

    @property
    def is_exhausted(self) -> bool:
        """True when there will be no further task."""
        return self._source.is_exhausted

    def next_task(self, *, num_running: int) -> TrialTask | None:
        """Return a task of the source.

        Raises:
            FailingSearchError: Too many trials have failed.
        """
        num_failed = self._reasons.total()
        if self._num_ended >= ENOUGH_ENDED and num_failed >= TOO_MANY_FAILED * self._num_ended:
            reason, number = self._reasons.most_common(1)[0]
            raise FailingSearchError(
                f"{num_failed} of {counted(self._num_ended, 'trial')} failed, and no more are "
                f"started; the commonest reason ({number} of them): {reason}",
                fix="mend what it names, and run the same command again: it continues with the "
                "trials that are left",
            )
        return self._source.next_task(num_running=num_running)

    def on_report(self, report: TrialReport) -> None:
        """Hand it on."""
        self._source.on_report(report)

    def on_end(self, report: TrialReport, state: TrialState) -> None:
        """Count an end, and hand it on."""
        if not self._is_hidden:
            self._num_ended += 1
            if state is TrialState.FAILED:
                self._reasons[report.failure.partition("\n")[0]] += 1
        self._source.on_end(report, state)

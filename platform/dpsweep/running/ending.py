"""Ending of a launch: its record, its messages, and those on remains of the launch before."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import (
    FailingSearchError,
    ModelError,
    RayLostError,
    ResourceError,
    StorageError,
    StudyError,
    SweepError,
)
from dpsweep.foundation.logs import is_locked
from dpsweep.foundation.words import counted, were
from dpsweep.ledgers.records import plan_of
from dpsweep.ledgers.trial import (
    inherited_events,
    read_records,
    steps_charged,
    trial_covered,
    trial_file,
    trial_spent,
)
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.running import entries
from dpsweep.study.events import TrialCharged, or_none
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import MOSTLY_FAILED, MOVING, TrialState
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.execution.checkpoint_files import kept_step

_WAIT_S, _POLL_S = 5.0, 0.1


@dataclass(frozen=True)
class Ending:
    """How a mode's run ended: ``finished`` or ``interrupted``, and why nothing more was started."""

    state: str
    reason: str = ""


def ending_of(error: BaseException, *, is_selection: bool) -> Ending:
    """Return how a launch has ended that an error ends.

    Args:
        error: The error.
        is_selection: Whether trials and their number are secret (accounting select).
    """
    if isinstance(error, KeyboardInterrupt):
        return Ending("interrupted")
    if isinstance(error, RayLostError):
        return Ending("interrupted", error.message)
    if isinstance(error, FailingSearchError):
        return Ending("failed", MOSTLY_FAILED)
    # These tell nothing of records; of a selection they may tell which trials there were.
    if not is_selection and isinstance(error, (ResourceError, ModelError, StorageError)):
        return Ending("failed", error.message)
    return Ending("failed")


class Conclusion:
    """Writes down how a launch has ended, once, whichever thread comes first.

    Args:
        study: Open for writing.
        observer: Who watches.
    """

    def __init__(self, study: Study, observer: Observer) -> None:
        self._study, self._observer = study, observer
        self._once, self._is_written = threading.Lock(), False

    def write(
        self, ending: Ending, first: BaseException | None = None, *, is_urgent: bool = False
    ) -> None:
        """Write it down; never instead of the error that has ended the launch.

        Args:
            ending: How it has ended.
            first: The error, or None.
            is_urgent: The process ends after it: do not wait for actors, what they charge is
                written by the next launch. No other thread writes to the study any more.
        Raises:
            SweepError: The end cannot be written down, and nothing else was wrong.
        """
        with self._once:
            if is_urgent:  # not before: who writes the end meanwhile would never be done
                self._study.hold_others()
            if self._is_written:
                return
            self._is_written = True
            try:
                if ending.state != "finished":
                    if not is_urgent:
                        await_actors(self._study)
                    write_charges(self._study)
                self._write(ending)
            except SweepError as error:
                if first is None:
                    raise
                problem = f"the end of the study cannot be written down: {error.message}"
                self._observer.on_message(problem)

    def _write(self, ending: Ending) -> None:
        study = self._study
        study.write(entries.study_ended(study, ending.state, ending.reason))
        if not study.spec.privacy.mode.is_sealed:
            say_failures(study, self._observer)


def await_actors(study: Study) -> None:
    """Wait a while until no process holds the ledger of an unfinished trial any more."""
    deadline = time.monotonic() + _WAIT_S
    ledgers = [
        trial_file(study.files.ledger, number)
        for number, trial in study.view.trials.items()
        if trial.state in MOVING
    ]
    while any(map(is_locked, ledgers)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def write_charges(study: Study) -> None:
    """Write down what unfinished trials have been charged since their last reports.

    The tracking store then shows of each at least the epsilon that its ledger has, and ``status``
    the step of the model that was kept.

    Raises:
        LedgerError: A ledger is damaged, or was lost.
    """
    privacy, ledger = study.spec.privacy, study.files.ledger
    if privacy.mode.is_sealed:
        return  # its winner has the epsilon of the selection
    for number, trial in sorted(study.view.trials.items()):
        is_private = TRAINABLES[trial.hparams["method"]].is_private
        if trial.state not in MOVING or not is_private:
            continue
        spent = trial_spent(ledger, number, at_least=trial.charged)
        if len(spent) == trial.charged:
            continue
        inherited = inherited_events(read_records(trial_file(ledger, number)))
        epsilon = epsilon_of(inherited + spent, delta=privacy.delta, accountant=privacy.accountant)
        step = max(trial.step, kept_step(study.files.trial(number)))
        study.write(TrialCharged(number, step, len(spent), or_none(epsilon)))


def charged_epsilon(study: Study, trial: int, at_least: int) -> float:
    """Return the epsilon of a trial by its ledger file, which outlives the trial's process.

    Raises:
        LedgerError: The ledger is damaged, or holds fewer than ``at_least`` charges.
    """
    view, files, privacy = study.view.trials[trial], study.files, study.spec.privacy
    if not TRAINABLES[view.hparams["method"]].is_private:
        return math.inf
    try:
        inherited = files.task(trial).inherited
    except StudyError:
        inherited = inherited_events(read_records(trial_file(files.ledger, trial)))
    spent = trial_covered(files.ledger, trial, inherited, at_least=at_least)
    return epsilon_of(spent, delta=privacy.delta, accountant=privacy.accountant)


def said_lost(directory: LogPath, trial: int, step: int) -> str:
    """Say what a trial that goes on at a step was charged beyond it; empty where that is nothing.

    Steps on public records are free, and are repeated alone.

    Args:
        directory: Where the ledger files of the study lie.
        trial: Trial number.
        step: Plan position at which it goes on.
    Raises:
        LedgerError: Its ledger is damaged.
    """
    total = steps_charged(directory, trial) - step
    if total <= 0:
        return ""
    lost = reached = 0  # charges that cost something; positions that were charged once at least
    for record in read_records(trial_file(directory, trial)):
        if record["kind"] == "charge" and "start" in record:
            start, stop = record["start"], record["stop"]
            events = plan_of(record).slice(0, stop - start)
            first = min(max(reached - start, 0), len(events))
            kept = events.slice(first, min(max(step - start, first), len(events)))
            lost += len(events.without("public")) - len(kept.without("public"))
            reached = max(reached, stop)
    said = f"; {were(lost, 'charged step')} lost and stay spent" if lost > 0 else ""
    free = total - lost
    return f"{said}; repeated at no cost: {counted(free, 'public step')}" if free > 0 else said


def say_failures(study: Study, observer: Observer) -> None:
    """Say once which reason most failed trials have, where more trials failed than not."""
    failed = [t for t in study.view.trials.values() if t.state is TrialState.FAILED]
    ended = study.view.num_ended
    if len(failed) < 2 or 2 * len(failed) <= ended:
        return
    reasons = Counter(trial.reason.partition("\n")[0] for trial in failed)
    reason, number = reasons.most_common(1)[0]
    observer.on_message(
        f"{len(failed)} of {ended} trials failed; the commonest reason ({number} of them): {reason}"
    )

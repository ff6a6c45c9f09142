"""Admission of trials: what each was let in with, so that nobody runs another one in its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import AbsentLedgerError, LedgerError
from dpsweep.foundation.logs import LogReader
from dpsweep.ledgers.trial import STUDY_FILE, trial_file
from dpsweep.privacy.events import Plan


def other_task(trial: int) -> LedgerError:
    """Return the error for a trial that is not what the study's ledger has admitted."""
    return LedgerError(
        f"trial {trial} is not the one that was admitted: its trial.json has changed",
        because="the study's ledger has the SHA-256 of what the trial was to do",
        fix="restore the file, or delete it; the trial is then planned again from the journal",
    )


def check_admitted(directory: LogPath, trial: int, plan: Plan, task: str) -> None:
    """Refuse a trial that the study's ledger has not admitted as it is.

    A trial's process asks this before its first step: what it is to do stands in a file that
    somebody else may have written, in a bucket above all.

    Args:
        directory: Of the ledgers.
        trial: Trial number.
        plan: All that it may charge.
        task: See ``StudyLedger.reserve``.
    Raises:
        AbsentLedgerError: The study's ledger cannot be read, or it or the trial's is not there.
        LedgerError: It was not admitted, or as another one, or has been settled since; or the
            ledger is damaged.
    """
    last = _last(directory, trial)
    record = last.get("reserve")
    path = directory / STUDY_FILE if record is None else trial_file(directory, trial)
    if (record is None or record.get("has_file")) and not path.exists():
        raise AbsentLedgerError(
            f"{path} is not there",
            because="it was when the trial was admitted",
            fix="put it back, and run the same command again",
        )
    if record is None:
        raise other_task(trial)
    digest = plan_digest(plan)  # earlier versions wrote less of what they admitted
    if record.get("plan_sha256", digest) != digest or record.get("task_sha256", task) != task:
        raise other_task(trial)
    if "settle" in last and next(reversed(last)) == "settle":
        raise LedgerError(
            f"trial {trial} has been settled; a process that comes after it charges nothing",
            because="what the trial held of the study's budget may be held by others by now",
            fix="run the study again: it continues whatever has not ended",
        )


def admission(directory: LogPath, trial: int) -> Mapping[str, Any] | None:
    """Return the last record with which a study's ledger has admitted a trial, or None."""
    return _last(directory, trial).get("reserve")


def is_promoted(directory: LogPath, trial: int) -> bool:
    """Say whether all of a trial's plan is reserved by now, or no more than up to its barrier."""
    record = admission(directory, trial)
    return record is not None and "num_reserved" not in record


def _last(directory: LogPath, trial: int) -> dict[str, Mapping[str, Any]]:
    """Return the last reservation and the last settlement of a trial, in their order."""
    last: dict[str, Mapping[str, Any]] = {}
    for record in _reader(directory / STUDY_FILE).read():
        if record["kind"] in ("reserve", "settle") and record["trial"] == trial:
            last.pop(record["kind"], None)
            last[record["kind"]] = record
    return last


@lru_cache(maxsize=4)
def _reader(ledger: LogPath) -> LogReader:
    """Return this process's reader of a study's ledger; a trial's asks it for every trial."""
    return LogReader(ledger)


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of a plan; the plan itself is kept with the trial."""
    text = json.dumps(plan.merged().to_json(), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

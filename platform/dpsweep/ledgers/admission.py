"""Admission of trials: what each was let in with, so that nobody runs another one in its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import LedgerError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import STUDY_FILE
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
        LedgerError: It was not admitted, or as another one, or the ledger is damaged.
    """
    record = admission(directory, trial)
    if record is None:
        raise other_task(trial)
    digest = plan_digest(plan)  # earlier versions wrote less of what they admitted
    if record.get("plan_sha256", digest) != digest or record.get("task_sha256", task) != task:
        raise other_task(trial)


def admission(directory: LogPath, trial: int) -> Mapping[str, Any] | None:
    """Return the last record with which a study's ledger has admitted a trial, or None."""
    admitted: Mapping[str, Any] | None = None
    for record in read_log(directory / STUDY_FILE):
        if record["kind"] == "reserve" and record["trial"] == trial:
            admitted = record
    return admitted


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of a plan; the plan itself is kept with the trial."""
    text = json.dumps(plan.merged().to_json(), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

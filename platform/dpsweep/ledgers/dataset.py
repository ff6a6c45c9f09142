"""The budget of a dataset: what all studies on it may cost together, in one file they share."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpsweep.foundation.database_path import LogPath, log_path
from dpsweep.foundation.durable import Log
from dpsweep.foundation.errors import BadInputError, LedgerError, LockedError, StorageError
from dpsweep.foundation.file_paths import FilePath, is_read_only
from dpsweep.foundation.logs import open_log, read_log
from dpsweep.foundation.records import NOTHING
from dpsweep.foundation.words import numbers
from dpsweep.ledgers import records as kinds
from dpsweep.ledgers.caps import caps_of, refuse_other_records, refuse_over_cap, total
from dpsweep.ledgers.dataset_account import DatasetAccount, StudyCharge

_WAIT_S = 30.0  # for another process that holds the file, which takes milliseconds
_POLL_S = 0.05
_ELSE = "a place that can be written"
#: What helps whoever may not write a dataset's ledger that is there: no other file, which has spent
#: nothing.
_ANOTHER = "another file would forget what this one holds"
_NONE: Mapping[int, int] = MappingProxyType({})


def read_dataset_ledger(path: LogPath | str) -> DatasetAccount:
    """Return what a dataset ledger says now; needs no lock.

    Raises:
        LedgerError: It is damaged.
    """
    place = _address(path)
    return _account_of(kinds.checked(place, read_log(place), kinds.DATASET))


#: Parts that earlier versions did not write wherever they decide.
_LATER = ("data.class_names", "data.label_column", "data.attributes")


def check_dataset_budget(
    path: LogPath | str,
    *,
    dataset: str,
    parts: Mapping[str, Any],
    epsilon: float,
    delta: float,
    cap_epsilon: float | None = None,
    cap_delta: float | None = None,
) -> None:
    """Refuse what ``DatasetLedger.reserve`` would refuse of a new study, and write nothing.

    Raises:
        DatasetBudgetError: The study does not fit.
        BadInputError: The file is about another dataset or other parts of it, or has other caps or
            none.
    """
    account = read_dataset_ledger(path)
    place = _address(path)
    refuse_other_records(place, account, dataset, parts)
    caps = caps_of(place, account, dataset, cap_epsilon, cap_delta)
    refuse_over_cap(place, account, caps, epsilon, delta)


class DatasetLedger:
    """Charges studies to the dataset they share; any number of processes may use one file.

    Guarantees:
        Each study is charged its declared (epsilon, delta) durably before it runs, once, and
        nothing is ever given back: deleting a study or running it again lowers nothing. Epsilons
        and deltas add up (basic composition, which holds for studies that were chosen after
        looking at the results of earlier ones), so while ``reserve`` succeeds, all studies
        together are (cap_epsilon, cap_delta)-DP with respect to the records that they all declare
        private: every study must declare the same parts, for what one shows for free has no
        epsilon in another. Sums are exact in decimal notation.

        A study that was charged pays once for the trials it admits: these are on record here too,
        so a directory that was deleted in part, or replaced by an older copy, is refused where it
        does not know all of them; and a study that was charged refuses a file that does not know
        the study, or knows some of its trials and not all.

        Not covered: studies on the same records that do not name this file; records that are
        changed or reordered under the same name; a file that is deleted or replaced by an older
        copy before another study, or by one that knows every trial of this one; an older copy of a
        study's directory that knows all its trials; and a copy at the same path on another machine.

    Args:
        path: A file of JSON lines, or ``postgresql://USER@HOST/DATABASE#NAME``; made on first use.
    """

    def __init__(self, path: LogPath | str) -> None:
        self.path = _address(path)
        self._before = NOTHING

    def reserve(
        self,
        study_id: str,
        name: str,
        *,
        directory: FilePath | str,
        dataset: str,
        parts: Mapping[str, Any],
        accounting: str,
        epsilon: float,
        delta: float,
        cap_epsilon: float | None = None,
        cap_delta: float | None = None,
        trials: Mapping[int, int] = _NONE,
        started: Collection[int] = (),
        is_charged: bool = False,
    ) -> None:
        """Charge a study to the dataset, before it runs; a study that is charged already is free.

        Args:
            study_id: Random name of the study.
            name: Its name, for people.
            directory: The study's own, resolved: a copy elsewhere has the same ``study_id``, and
                would spend the study's budget a second time.
            dataset: Declared name of the dataset.
            parts: What decides which of its records are public, and whose scores are shown: keys
                of a spec with their values, as JSON has them.
            accounting: Accounting mode of the study.
            epsilon: Declared for the whole study; infinite fits under no cap.
            delta: Of that epsilon.
            cap_epsilon: Needed on first use of the file; later the same or None.
            cap_delta: Needed on first use of the file; later the same or None.
            trials: Trials that the study's own ledger knows, and how often it has admitted each.
            started: Those of them that its journal knows, which are noted here first.
            is_charged: True if the study's own ledger says that it was charged here.
        Raises:
            DatasetBudgetError: The study does not fit, or the sum is no bound any more.
            LedgerError: This file was charged and knows nothing of it, or one of file and study
                knows trials that the other does not: one was deleted or is an older copy.
            BadInputError: The file is about another dataset or other parts of it, has other caps
                or none, cannot be written, or has charged this study another amount or from
                another directory.
            LockedError: Another process has held the file for half a minute.
        """
        with self._open() as log:
            account = _account_of(self._checked(log))
            entry = next((s for s in account.studies if s.study_id == study_id), None)
            if entry is not None:  # its own terms hold what a file of before lacks
                parts = {k: parts[k] for k in parts if k not in _LATER or k in account.parts}
            refuse_other_records(self.path, account, dataset, parts)
            caps = caps_of(self.path, account, dataset, cap_epsilon, cap_delta)
            self._refuse_lost_history(account, study_id, name, trials, is_charged=is_charged)
            self._refuse_older_copy(account, study_id, name, started)
            if entry is not None and account.broken is None:
                if (entry.epsilon, entry.delta) != (epsilon, delta):
                    raise BadInputError(
                        f"study {name!r} was charged epsilon={entry.epsilon:.12g} at delta="
                        f"{entry.delta:.12g} to {self.path}, and now declares epsilon="
                        f"{epsilon:.12g} at delta={delta:.12g}",
                        fix="undo the change, or start a new study under another name",
                    )
                if entry.directory != str(directory):
                    raise BadInputError(
                        f"study {name!r} was charged to {self.path} in {entry.directory}, and this "
                        f"is {directory}",
                        because="a copy would spend the study's budget again",
                        fix="move the directory back, or start a new study under another name",
                    )
                return
            refuse_over_cap(self.path, account, caps, epsilon, delta)
            if account.dataset is None:
                first = {"dataset": dataset, "parts": dict(parts)}
                log.append(
                    {"kind": "dataset", **first, "cap_epsilon": caps[0], "cap_delta": caps[1]}
                )
            log.append(
                {
                    "kind": "study",
                    "study_id": study_id,
                    "name": name,
                    "directory": str(directory),
                    "accounting": accounting,
                    "epsilon": epsilon,
                    "delta": delta,
                    "day": time.strftime("%Y-%m-%d", time.gmtime()),  # no hour: of select, either
                }
            )

    def _refuse_lost_history(
        self,
        account: DatasetAccount,
        study_id: str,
        name: str,
        trials: Mapping[int, int],
        *,
        is_charged: bool,
    ) -> None:
        if is_charged and all(study.study_id != study_id for study in account.studies):
            raise LedgerError(
                f"study {name!r} was charged to {self.path}, which does not know it",
                because="the file was deleted, or replaced by an older copy; what the dataset has "
                "cost is unknown",
                fix="restore it; a new file would forget what studies have cost",
            )
        noted = account.trials.get(study_id, _NONE)
        lost = sorted(trial for trial, times in noted.items() if times > trials.get(trial, 0))
        if lost:
            raise LedgerError(
                f"{self.path} knows trials of study {name!r} that its own ledger does not, or has "
                f"admitted less often: {numbers(lost)}",
                because="the study was deleted in part, or replaced by an older copy; run again, "
                "it would spend its budget a second time",
                fix="restore it, or start a new study under another name",
            )

    def _refuse_older_copy(
        self, account: DatasetAccount, study_id: str, name: str, started: Collection[int]
    ) -> None:
        noted = account.trials.get(study_id, _NONE)
        lost = sorted(set(started) - set(noted))
        if noted and lost:  # earlier versions noted none
            raise LedgerError(
                f"study {name!r} has run trials that {self.path} does not know: {numbers(lost)}",
                because="the file was replaced by an older copy, or lost its end; what other "
                "studies have cost since is unknown",
                fix="restore it; without it nothing bounds what the dataset costs",
            )

    def note_trial(self, study_id: str, trial: int, attempt: int = 1) -> None:
        """Put on record that a trial of a charged study is admitted to private records; once.

        Args:
            study_id: Of the study.
            trial: Number of the trial.
            attempt: How often the study's own ledger has admitted it, this time included: a copy of
                before knows fewer.
        Raises:
            LedgerError: The study was not charged here, or the file is damaged.
            LockedError: Another process has held the file for half a minute.
        """
        with self._open() as log:
            records = self._checked(log)
            if not any(r["kind"] == "study" and r["study_id"] == study_id for r in records):
                raise LedgerError(
                    f"{self.path} does not know the study whose trial {trial} is to start",
                    because="it was deleted or replaced while the study ran",
                    fix="restore it; without it nothing bounds what the dataset costs",
                )
            ours = (r for r in records if r["kind"] == "trial" and r["study_id"] == study_id)
            noted = [record.get("attempt", 1) for record in ours if record["trial"] == trial]
            if not noted or noted[-1] < attempt:
                again = {"attempt": attempt} if attempt > 1 else {}
                log.append({"kind": "trial", "study_id": study_id, "trial": trial, **again})

    def probe(self) -> None:
        """Open the ledger for writing, as a charge does, if it is there; write and make nothing.

        Raises:
            BadInputError: It cannot be written.
            LedgerError: It is damaged.
            LockedError: Another process has held it for half a minute.
            StorageError: Its database does not answer.
        """
        path = self.path  # of a file in a closed folder ``Path.exists`` raises
        if os.path.exists(path) if isinstance(path, Path) else path.exists():
            self._open().close()

    def break_claim(self, study_id: str, reason: str) -> None:
        """Write that a study lost its claim: from now on ``reserve`` refuses every study.

        Raises:
            LockedError: Another process has held the file for half a minute.
        """
        with self._open() as log:
            log.append({"kind": "broken", "study_id": study_id, "reason": reason})

    def _checked(self, log: Log) -> list[Mapping[str, Any]]:
        """Return all records of the ledger, of which those that are new are checked."""
        num_kept = log.whole.num_kept
        records = kinds.checked(self.path, log.records, kinds.DATASET, num_checked=num_kept)
        self._before = log.whole  # only now: what has a flaw is checked again
        return records

    def _open(self) -> Log:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                return open_log(self.path, is_shared=True, before=self._before)
            except LockedError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
            except StorageError as error:
                fix = error.fix
                if isinstance(self.path, Path):
                    is_there = os.path.exists(self.path)
                    elsewhere = "set privacy.dataset_ledger to " + _ELSE
                    fix = why_closed(self.path)[1] if is_there else elsewhere
                raise BadInputError(
                    f"cannot write the dataset ledger {self.path}", because=error.message, fix=fix
                ) from error


def why_closed(path: Path) -> tuple[str, str]:
    """Return what keeps this user from writing a ledger that is there, and what may be done."""
    if is_read_only(path):
        return "is on a read-only file system", f"mount it for writing; {_ANOTHER}"
    fix = f"let its owner open it to your group (chmod g+rw); {_ANOTHER}"
    return "is closed to you", fix


def _address(path: LogPath | str) -> LogPath:
    return log_path(path) if isinstance(path, str) else path


def _account_of(records: Iterable[Mapping[str, Any]]) -> DatasetAccount:
    facts: dict[str, Any] = {}
    studies: list[StudyCharge] = []
    trials: dict[str, dict[int, int]] = {}
    for record in records:
        if record["kind"] == "dataset":
            said = ("dataset", "parts", "cap_epsilon", "cap_delta")
            facts |= {key: record[key] for key in said}
        elif record["kind"] == "study":
            keys = ("study_id", "name", "directory", "accounting", "epsilon", "delta")
            charge = StudyCharge(**{key: record[key] for key in keys}, day=record.get("day"))
            studies.append(charge)
        elif record["kind"] == "trial":
            trials.setdefault(record["study_id"], {})[record["trial"]] = record.get("attempt", 1)
        elif record["kind"] == "broken" and "broken" not in facts:
            names = {study.study_id: study.name for study in studies}
            name = names.get(record["study_id"], record["study_id"])
            facts["broken"] = f"study {name!r}: {record['reason']}"
    return DatasetAccount(
        epsilon=float(total(study.epsilon for study in studies)),
        delta=float(total(study.delta for study in studies)),
        studies=tuple(studies),
        trials=trials,
        **facts,
    )

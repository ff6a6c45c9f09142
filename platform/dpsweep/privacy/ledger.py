"""The write-ahead privacy ledger: an event is charged durably before it runs, and never uncharged.

One file per trial, written by the process that executes the trial, and one per study, written by
the driver for admission. Both are append-only (``dpsweep.durable``), so spent privacy survives
``kill -9`` of either and never goes down: not by crash, retry, prune, delete or resume.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsweep.durable import DurableLog, read_log
from dpsweep.errors import BudgetExceededError, LedgerError
from dpsweep.privacy.accountants import AccountantName, epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import Plan

STUDY_FILE = "study.jsonl"


def trial_file(directory: Path, trial: int) -> Path:
    """Return the ledger file of one trial."""
    return directory / f"trial-{trial:04d}.jsonl"


def charged_events(records: list[dict[str, Any]]) -> Plan:
    """Return everything a trial's records ever charged, in order, repeats included."""
    spent = Plan(())
    for record in records:
        if record["kind"] == "charge":
            spent = spent + Plan.from_json(record["events"])
    return spent.merged()


class TrialLedger:
    """What one trial has spent; its length is the number of events ever charged.

    Guarantees:
        ``charge`` returns only after the record is on disk; call it *before* the events run. The
        hard stop is here: a charge that would take the trial over its cap is refused and leaves
        the ledger as it was. A crash between charge and run leaves the charge. Restoring a model
        checkpoint does not touch the ledger.

        Not covered: events that a method causes without charging them (each method's conformance
        test compares executed with charged events), and a ledger file edited by hand.

    Args:
        path: File of this trial.
        budget: Cap of the trial, or None for a method that is not private.
        accountant: Accountant of the cap.
    Raises:
        LedgerError: Another process executes this trial, or the file is damaged.
    """

    def __init__(
        self, path: Path, *, budget: PrivacyBudget | None, accountant: AccountantName
    ) -> None:
        self._log = DurableLog(path)
        self._budget = budget
        self._accountant = accountant
        self.path = path
        self.spent = charged_events(self._log.records)
        self._log.append({"kind": "open", "host": socket.gethostname(), "pid": os.getpid()})

    def __len__(self) -> int:
        return len(self.spent)

    @property
    def num_incarnations(self) -> int:
        """How many processes have opened this ledger for writing, this one included."""
        return sum(record["kind"] == "open" for record in self._log.records)

    def epsilon(self) -> float:
        """Return the epsilon of everything ever charged, at the budget's delta."""
        if self._budget is None:
            return float("inf") if len(self.spent) else 0.0
        return epsilon_of(self.spent, delta=self._budget.delta, accountant=self._accountant)

    def charge(self, start: int, stop: int, events: Plan) -> None:
        """Charge the events of plan positions ``[start, stop)``; run them only afterwards.

        Raises:
            BudgetExceededError: They would take the trial over its cap; nothing was charged.
        """
        if len(events) != stop - start:
            raise LedgerError(f"{len(events)} events for positions {start} to {stop - 1}")
        total = (self.spent + events).merged()
        if self._budget is not None:
            epsilon = epsilon_of(total, delta=self._budget.delta, accountant=self._accountant)
            if not epsilon <= self._budget.target_epsilon:  # also refuses what is not a number
                raise BudgetExceededError(
                    f"positions {start} to {stop - 1} would cost epsilon={epsilon:.4f} at "
                    f"delta={self._budget.delta:g}, over trial_epsilon="
                    f"{self._budget.target_epsilon:g}; refused and not run",
                    because=f"{len(self.spent)} events are charged already ({self._accountant}, "
                    f"{self._budget.neighboring_relation})",
                )
        self._log.append(
            {"kind": "charge", "start": start, "stop": stop, "events": events.merged().to_json()}
        )
        self.spent = total

    def close(self) -> None:
        """Release the file, so that another process may continue the trial."""
        self._log.close()


class StudyLedger:
    """The study's side of the ledger: admissions by the driver, and the sum over all trials.

    Args:
        directory: Where the ledger files of a study lie.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = DurableLog(directory / STUDY_FILE)

    def reserve(self, trial: int, plan: Plan, *, epsilon: float) -> None:
        """Write a trial's full plan and its epsilon durably before launch; once per trial."""
        if not any(r["kind"] == "reserve" and r["trial"] == trial for r in self._log.records):
            self._log.append(
                {
                    "kind": "reserve",
                    "trial": trial,
                    "events": plan.merged().to_json(),
                    "epsilon": epsilon if math.isfinite(epsilon) else None,
                }
            )

    def settle(self, trial: int, state: str) -> None:
        """Write that a trial has ended; what it never ran stays uncharged in its own file."""
        self._log.append({"kind": "settle", "trial": trial, "state": state})

    def close(self) -> None:
        """Release the file."""
        self._log.close()


def trial_spent(directory: Path, trial: int, *, at_least: int = 0) -> Plan:
    """Return everything charged to one trial so far.

    Args:
        directory: Where the ledger files of a study lie.
        trial: Trial number.
        at_least: Number of events that are known to have been charged (by a report).
    Raises:
        LedgerError: The file is damaged, missing or shorter than that: history was lost.
    """
    path = trial_file(directory, trial)
    spent = charged_events(read_log(path))
    check_complete(path, len(spent), at_least)
    return spent


def check_complete(path: Path, charged: int, at_least: int) -> None:
    """Refuse a ledger file that holds fewer events than are known to have been charged.

    Raises:
        LedgerError: It does; what it says would be an epsilon that is not true.
    """
    if charged < at_least:
        raise LedgerError(
            f"{path} holds {charged} charged events, but at least {at_least} were charged",
            because="the file was deleted, truncated or replaced by an older one",
            fix="restore it; without it nothing true can be said of this trial's epsilon",
        )


def study_spent(directory: Path, at_least: Mapping[int, int]) -> Plan:
    """Return everything charged to any trial of a study: finished, pruned, failed or repeated.

    Args:
        directory: Where the ledger files of a study lie.
        at_least: Known number of charged events by trial, as in ``trial_spent``.
    Raises:
        LedgerError: A file is damaged or lost, or belongs to a trial nobody knows.
    """
    strays = {int(path.stem[6:]) for path in directory.glob("trial-*.jsonl")} - set(at_least)
    if strays:
        raise LedgerError(
            f"{directory} holds ledgers of trials that the journal does not know: "
            f"{', '.join(map(str, sorted(strays)))}",
            because="the journal was deleted, truncated or replaced",
            fix="restore it, or start a new study under another name",
        )
    spent = Plan(())
    for trial, known in sorted(at_least.items()):
        spent = spent + trial_spent(directory, trial, at_least=known)
    return spent.merged()

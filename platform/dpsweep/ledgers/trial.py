"""The write-ahead privacy ledger: an event is charged durably before it runs, and never uncharged.

One file per trial, written by the process that executes the trial, and one per study, written by
the driver for admission (``ledgers.study``). Both are append-only (``dpsweep.foundation.logs``),
so spent privacy survives ``kill -9`` of either and never goes down: not by crash, retry, prune,
delete or resume.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.database_path import DatabasePath, LogPath
from dpsweep.foundation.errors import AbsentLedgerError, BudgetExceededError, LedgerError
from dpsweep.foundation.logs import open_log, read_log
from dpsweep.foundation.words import numbers
from dpsweep.ledgers import records as kinds
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE, PrivacyBudget
from dpsweep.privacy.composition.base import Composition, Cost
from dpsweep.privacy.events import NO_PLAN, EventRun, Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import AccountantName, shown_delta

STUDY_FILE = "study.jsonl"
_TRIAL_FILE = re.compile(r"trial-(\d+)(\.attempt-\d+)?\.jsonl")


def trial_file(directory: LogPath, trial: int) -> LogPath:
    """Return the ledger file of one trial."""
    return directory / f"trial-{trial:04d}.jsonl"


def read_records(path: LogPath) -> list[Mapping[str, Any]]:
    """Return the records of a trial's ledger file, in order; none where there is no file.

    Raises:
        LedgerError: One is damaged, or none that is written there.
    """
    return kinds.checked(path, read_log(path), kinds.TRIAL)


def make_trial_file(directory: LogPath, trial: int, study_id: str) -> None:
    """Make the ledger file of a trial durably, unless it is there: before the trial is admitted.

    So a file that is missing later was deleted. It says whose it is, and nothing is charged yet.
    """
    path = trial_file(directory, trial)
    if not isinstance(path, DatabasePath) and not path.parent.is_dir():
        raise AbsentLedgerError(
            f"{path.parent} is not there any more",
            because="somebody has moved or removed it while the study ran",
            fix="put it back, and run the same command again",
        )
    if not path.exists():
        with open_log(path) as log:
            log.append({"kind": "admit", "study_id": study_id})


def is_used(path: LogPath) -> bool:
    """Say whether a process has ever executed the trial of a ledger file; missing ones were not."""
    return any(record["kind"] != "admit" for record in read_records(path))


def charged_events(records: Sequence[Mapping[str, Any]]) -> Plan:
    """Return everything a trial's records ever charged, in order, repeats included."""
    return kinds.events_of(records, "charge")


def inherited_events(records: Sequence[Mapping[str, Any]]) -> Plan:
    """Return what the run that a trial starts from had charged before; not the trial's own."""
    return kinds.events_of(records, "inherit")


@dataclass(frozen=True)
class TrialLimit:
    """The part of a composed study's budget that a trial holds.

    Attributes:
        composition: The study's own.
        cost: What is reserved of it for the trial, by limit.
    """

    composition: Composition
    cost: Cost

    def excess(self, spent: Plan) -> str | None:
        """Say by how much ``spent`` is over the reservation, or return None: it is not."""
        composition = self.composition
        for name, cost in composition.cost(spent).items():
            # A reservation holds twice this much more than its plan costs, for rounding errors.
            if not cost <= self.cost[name] * (1 + composition.slack / 2):
                return (
                    f"{composition.words(name, cost)}, over the {self.cost[name]:.6g} that the "
                    "trial has reserved of the study's budget"
                )
        return None


class TrialLedger:
    """The spending of one trial; its length is the number of events ever charged.

    A trial that starts from the release of another run inherits that run's events: they are on
    record here too, count against the cap and in every epsilon of the trial, and are not charged
    a second time to the study.

    Guarantees:
        ``charge`` returns only after the record is on disk; call it *before* the events run. The
        hard stop is here: a charge that would take the trial over its cap, or over what it has
        reserved of the study's budget, is refused and leaves the ledger as it was. A crash between
        charge and run leaves the charge. Restoring a model checkpoint does not touch the ledger.

        Not covered: events that a method causes without charging them (each method's conformance
        test compares executed with charged events), and a ledger file edited by hand.

    Args:
        path: File of this trial.
        budget: Cap of the trial, or None for a method that is not private.
        accountant: Accountant of the cap.
        limit: What the trial has reserved of a composed study's budget, or None.
        fresh: Begin a new file if this one holds charges; the old one is kept beside it under
            another name. Only for trials whose lost attempts are never released (``select``).
        inherited: Events of the run that the trial starts from; fixed when it is first opened.
        is_told: False: which process this is stays out of the file. Its number would tell how many
            others ran before it, which ``select`` hides.
    Raises:
        LedgerError: Another process executes this trial, the file is damaged, or the trial has
            inherited other events before.
    """

    def __init__(
        self,
        path: LogPath,
        *,
        budget: PrivacyBudget | None,
        accountant: AccountantName,
        limit: TrialLimit | None = None,
        fresh: bool = False,
        inherited: Plan = NO_PLAN,
        is_told: bool = True,
    ) -> None:
        self._log = open_log(path)
        if fresh and any(record["kind"] == "charge" for record in self._log.records):
            path.rename(_archive_of(path))  # type: ignore[arg-type]  # of the same kind
            self._log.close()
            self._log = open_log(path)  # syncs the directory, the new name included
        self._budget = budget
        self._accountant = accountant
        self._limit = limit
        self.path = path
        self.inherited = inherited.merged()
        try:
            self.spent = charged_events(kinds.checked(path, self._log.records, kinds.TRIAL))
            self._inherit()
            process = {"host": socket.gethostname(), "pid": os.getpid()} if is_told else {}
            self._log.append({"kind": "open", **process})
        except BaseException:
            self._log.close()
            raise

    def _inherit(self) -> None:
        """Put on record what the trial inherits; what is on record already must be the same."""
        recorded = inherited_events(self._log.records)
        is_new = not any(record["kind"] in ("open", "inherit") for record in self._log.records)
        if is_new and self.inherited:
            self._log.append({"kind": "inherit", "events": self.inherited.to_json()})
        elif recorded != self.inherited:
            raise LedgerError(
                f"{self.path} says that the trial has inherited {len(recorded)} events, not these "
                f"{len(self.inherited)}",
                because="a trial never starts from another release than the one it began with",
            )

    def __len__(self) -> int:
        return len(self.spent)

    @property
    def position_charges(self) -> int:
        """Number of charged events that were positions of the plan, repeats included."""
        return kinds.positions_charged(self._log.records)

    @property
    def releases(self) -> dict[int, Mapping[str, Any]]:
        """The models that the trial has released for others to start from, by their number."""
        return releases_of(self._log.records)

    def note_release(self, index: int, sha256: str) -> None:
        """Put on record that a model was released now: its users inherit what is charged by now.

        Args:
            index: Number of the release; it has none yet.
            sha256: Of the checkpoint.
        """
        if index in self.releases:
            raise LedgerError(f"{self.path}: release {index} was made before")
        record = {"kind": "release", "index": index, "charged": len(self), "sha256": sha256}
        self._log.append(record)

    def epsilon(self) -> float:
        """Return the epsilon of everything ever charged or inherited, at the budget's delta."""
        covered = self.inherited + self.spent
        if self._budget is None:
            return float("inf") if any(run.part != "public" for run in covered.runs) else 0.0
        return epsilon_of(covered, delta=self._budget.delta, accountant=self._accountant)

    def affords(self, events: Plan) -> bool:
        """Say whether a charge of these events would be accepted now."""
        return self._refusal("", self._with(events)) is None

    def charge(self, start: int, stop: int, events: Plan) -> None:
        """Charge the events of plan positions ``[start, stop)``; run them only afterwards.

        Raises:
            BudgetExceededError: They would take the trial over its cap or its reservation; nothing
                was charged.
        """
        if len(events) != stop - start:
            raise LedgerError(f"{len(events)} events for positions {start} to {stop - 1}")
        place = {"start": start, "stop": stop}
        self._charge(f"positions {start} to {stop - 1}", events, place)

    def release(self, events: Plan) -> None:
        """Charge events that are no positions of the plan (noisy scores), before they happen.

        Raises:
            BudgetExceededError: As for ``charge``.
        """
        self._charge(f"{len(events)} further events", events, {})

    def _charge(self, what: str, events: Plan, place: Mapping[str, int]) -> None:
        total = self._with(events)
        refusal = self._refusal(what, total)
        if refusal is not None:
            raise refusal
        self._log.append({"kind": "charge", **place, "events": events.merged().to_json()})
        self.spent = total

    def _with(self, events: Plan) -> Plan:
        return (self.spent + events).merged()

    def _refusal(self, what: str, total: Plan) -> BudgetExceededError | None:
        """Return why ``total`` may not have been charged, or None: it may."""
        charged = f"{len(self.spent)} events are charged already"
        if self.inherited:
            charged += f", after {len(self.inherited)} of the run that the trial starts from"
        if self._budget is not None:
            covered = self.inherited + total
            epsilon = epsilon_of(covered, delta=self._budget.delta, accountant=self._accountant)
            if not epsilon <= self._budget.target_epsilon:  # also refuses what is not a number
                return BudgetExceededError(
                    f"{what} would cost epsilon={shown_epsilon(epsilon)} at "
                    f"delta={shown_delta(self._budget.delta)}, over trial_epsilon="
                    f"{self._budget.target_epsilon:g}; refused and not run",
                    because=f"{charged} ({self._accountant}, {self._budget.neighboring_relation})",
                )
        excess = self._limit.excess(total) if self._limit is not None else None
        if self._limit is not None and excess is not None:
            study = self._limit.composition
            return BudgetExceededError(
                f"{what} would take the trial to {excess}; refused and not run",
                because=f"{charged}, and all trials together share epsilon="
                f"{study.target_epsilon:g} at delta={shown_delta(study.delta)} "
                f"({study.accountant}, {ADD_OR_REMOVE_ONE}, accounting composed)",
            )
        return None

    def close(self) -> None:
        """Release the file, so that another process may continue the trial."""
        self._log.close()


def _archive_of(path: LogPath) -> LogPath:
    """Return a free name for a trial's lost attempt: ``trial-0007.attempt-1.jsonl``."""
    number = 1
    while (archive := path.with_name(f"{path.stem}.attempt-{number}.jsonl")).exists():
        number += 1
    return archive


def steps_charged(directory: LogPath, trial: int) -> int:
    """Return how many positions of its plan a trial was charged for, repeats included."""
    return kinds.positions_charged(read_records(trial_file(directory, trial)))


def trial_spent(directory: LogPath, trial: int, *, at_least: int = 0) -> Plan:
    """Return everything charged to one trial so far, without attempts that were begun afresh.

    Args:
        directory: Where the ledger files of a study lie.
        trial: Trial number.
        at_least: Number of events that are known to have been charged (by a report).
    Raises:
        LedgerError: The file is damaged, missing or shorter than that: history was lost.
    """
    path = trial_file(directory, trial)
    spent = charged_events(read_records(path))
    check_complete(path, len(spent), at_least)
    return spent


def releases_of(records: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return what a run's ledger says of its releases: number -> ``charged`` and ``sha256``."""
    return {record["index"]: record for record in records if record["kind"] == "release"}


def trial_covered(directory: LogPath, trial: int, inherited: Plan, *, at_least: int = 0) -> Plan:
    """Return what a trial's epsilon covers: what it inherited, then what it charged itself.

    Args:
        directory: Where the ledger files of a study lie.
        trial: Trial number.
        inherited: Of its task.
        at_least: As in ``trial_spent``.
    Raises:
        LedgerError: As there; or the ledger says that the trial has inherited something else.
    """
    path = trial_file(directory, trial)
    records = read_records(path)
    spent, recorded = charged_events(records), inherited_events(records)
    check_complete(path, len(spent), at_least)
    if records and recorded != inherited.merged():
        raise LedgerError(
            f"{path} says that the trial has inherited {len(recorded)} events, and its task "
            f"{len(inherited)}",
            because="one of the two was edited, or replaced by an older copy",
            fix="restore it; without it nothing true can be said of this trial's epsilon",
        )
    return (inherited + spent).merged()


def check_complete(path: LogPath, charged: int, at_least: int) -> None:
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


def trials_on_disk(directory: LogPath) -> dict[int, list[LogPath]]:
    """Return the ledger files of each trial: lost attempts first, then the one that counts."""
    files: dict[int, list[LogPath]] = {}
    paths: list[LogPath] = [*directory.glob("trial-*.jsonl")]
    for path in sorted(paths, key=lambda path: (-len(path.name), path.name)):
        match = _TRIAL_FILE.fullmatch(path.name)
        if match:
            files.setdefault(int(match[1]), []).append(path)
    return files


def study_spent(directory: LogPath, at_least: Mapping[int, int]) -> Plan:
    """Return everything charged to any trial of a study: finished, pruned, failed or repeated.

    Args:
        directory: Where the ledger files of a study lie.
        at_least: Known number of charged events by trial, as in ``trial_spent``; lost attempts
            count too.
    Raises:
        LedgerError: A file is damaged or lost, or belongs to a trial nobody knows.
    """
    files = trials_on_disk(directory)
    strays = {n for n in set(files) - set(at_least) if any(map(is_used, files[n]))}
    if strays:
        raise LedgerError(
            f"{directory} holds ledgers of trials that the journal does not know: "
            f"{numbers(strays)}",
            because="the journal was deleted, truncated or replaced",
            fix="restore it, or start a new study under another name",
        )
    runs: list[EventRun] = []
    for trial, least in sorted(at_least.items()):
        attempts = [charged_events(read_records(path)) for path in files.get(trial, [])]
        check_complete(trial_file(directory, trial), sum(map(len, attempts)), least)
        for attempt in attempts:
            runs.extend(attempt.runs)
    return Plan(tuple(runs)).merged()

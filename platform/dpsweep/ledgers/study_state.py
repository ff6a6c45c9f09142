"""State of a study by the records of its ledger, for its writer and for every reader."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import LedgerError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers import records as kinds
from dpsweep.ledgers.trial import STUDY_FILE
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.table import COMPOSITIONS
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import recorded_bound
from dpsweep.privacy.terms import AccountantName

#: How a trial is settled whose driver died before anybody heard of it: it has run nothing.
UNSTARTED = "unstarted"


@dataclass
class StudyState:
    """The state of a study, as the records of its ledger say.

    Attributes:
        study_id: Random name of the study, or None: there is no ledger.
        terms: What the study may claim rests on, by dotted key of its spec; None in old ledgers.
        account: Of a composed study's composition, or None.
        reserved: The last reservation of every trial that was ever admitted.
        attempts: How often every trial was admitted: again, where nothing had run of it.
        settled: The last settlement of every trial that was ever settled.
        running: Trials that may charge within their reservation.
        kept: Trials that ended while their process may have lived, with their state.
        num_trials: Of a selection, once drawn.
        part_seed: Of a selection on a secret part of the records: who is in it, once drawn.
        selection: The record of a selection's charge, or None.
        has_begun: True once trials of a selection may have run.
        is_on_dataset: True once the study was charged to the dataset ledger of its terms.
        downgraded: Why the study lost its claim, or None.
    """

    study_id: str | None = None
    terms: Mapping[str, Any] | None = None
    account: CompositionAccount | None = None
    reserved: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    settled: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    kept: dict[int, str] = field(default_factory=dict)
    num_trials: int | None = None
    part_seed: str | None = None
    selection: Mapping[str, Any] | None = None
    has_begun: bool = False
    is_on_dataset: bool = False
    downgraded: str | None = None

    @property
    def known(self) -> set[int]:
        """Trials that may have run; the winner of a selection is trial 0, whoever it was."""
        settled = self.settled.items()
        unstarted = {n for n, record in settled if record["state"] == UNSTARTED} - self.running
        return set(self.reserved) - unstarted | ({0} if self.has_begun else set())

    @property
    def on_dataset(self) -> dict[int, int]:
        """Numbers by which a dataset ledger may know what the study has run, and how often each.

        A trial is noted there before anybody hears of it, so one of which nothing ran may be, too.
        The final run of a selection on a secret part is noted as the number after it, since the
        selection is noted as trial 0 when it begins: a copy of before that run lacks it.
        """
        has_final = self.selection is not None and bool(self.selection.get("subset"))
        final = {trial + 1: 1 for trial in self.reserved} if has_final else {}
        return self.attempts | dict.fromkeys(self.known - set(self.attempts), 1) | final

    def is_unstarted(self, trial: int) -> bool:
        """Say whether a trial was admitted and is settled as one that no process began."""
        is_held, last = trial in self.running or trial in self.kept, self.settled.get(trial, {})
        return not is_held and last.get("state") == UNSTARTED and not last.get("charged")

    def fold(self, record: Mapping[str, Any]) -> None:
        """Bring the state up to date with one more record."""
        kind = record["kind"]
        if kind == "study":
            self.study_id, self.terms = record["study_id"], record.get("terms")
        elif kind in COMPOSITIONS:
            self._fold_composition(COMPOSITIONS[kind].from_json(record))
        elif kind == "reserve":
            self._fold_reserve(record)
        elif kind == "settle":
            self._fold_settle(record)
        elif kind == "num_trials":
            self.num_trials, self.part_seed = record["num_trials"], record.get("part_seed")
        elif kind == "selection":
            self.selection = record
        elif kind == "begin_selection":
            self.has_begun = True
        elif kind == "dataset_charge":
            self.is_on_dataset = True
        elif kind == "downgrade":
            self.downgraded = self.downgraded or record["reason"]

    def _fold_composition(self, composition: Composition) -> None:
        if self.account is not None or self.reserved:
            raise LedgerError(
                "a composition is on record that was not fixed before the first trial",
                because="the ledger was edited; what trials have spent would be forgotten",
            )
        self.account = CompositionAccount(composition)

    def _fold_reserve(self, record: Mapping[str, Any]) -> None:
        trial = record["trial"]
        if trial not in self.reserved or self.is_unstarted(trial):
            self.attempts[trial] = self.attempts.get(trial, 0) + 1
        self.reserved[trial] = record
        self.running.add(trial)
        self.kept.pop(trial, None)
        if self.account is not None and not self.account.reserve(trial, record["cost"]):
            raise LedgerError(f"the reservation of trial {trial} on record does not fit")

    def _fold_settle(self, record: Mapping[str, Any]) -> None:
        trial = record["trial"]
        self.running.discard(trial)
        self.kept.pop(trial, None)
        self.settled[trial] = record
        if self.account is not None:
            if record["cost"] is None:  # its process may live: it holds what it held
                self.kept[trial] = record["state"]
            else:
                self.account.settle(trial, cost_of(record["cost"]))


@dataclass(frozen=True)
class StudyAccount:
    """The content of a study ledger, for readers.

    Attributes:
        study_id: Random name of the study, or None: there is no ledger.
        composition: Of a composed study, or None.
        committed: What is reserved or charged, by limit; empty without a composition.
        selection: Of a study in the mode select, or None.
        selection_epsilon: What its winner costs, or None.
        selection_accountant: The accountant that says so.
        downgraded: Why the study lost its claim, or None.
    """

    study_id: str | None = None
    composition: Composition | None = None
    committed: Mapping[str, float] = field(default_factory=dict)
    selection: Selection | None = None
    selection_epsilon: float | None = None
    selection_accountant: AccountantName | None = None
    downgraded: str | None = None


def read_study_state(directory: LogPath) -> StudyState:
    """Return what the ledger of a study says now; needs no lock.

    Raises:
        LedgerError: It is damaged.
    """
    path = directory / STUDY_FILE
    return state_of(path, read_log(path))


def state_of(path: LogPath, records: Iterable[Mapping[str, Any]]) -> StudyState:
    """Return what the records of a study's ledger say together.

    Args:
        path: Of the ledger, for messages.
        records: In their order.
    Raises:
        LedgerError: One is none that is written there, or contradicts those before it.
    """
    state = StudyState()
    for number, record in enumerate(kinds.checked(path, records, kinds.STUDY), start=1):
        try:
            state.fold(record)
        except (KeyError, TypeError) as error:
            raise LedgerError(
                f"{path}:{number}: record {record['kind']!r} does not go with those before it; the "
                "ledger cannot be trusted",
                because=f"{type(error).__name__}: {error}",
                fix="restore the file from a backup, or start a new study",
            ) from error
    return state


def account_of(state: StudyState) -> StudyAccount:
    """Return what readers show of a study ledger."""
    account, selection = state.account, state.selection
    return StudyAccount(
        study_id=state.study_id,
        composition=None if account is None else account.composition,
        committed={} if account is None else account.committed,
        selection=None if selection is None else Selection(selection["mean"], selection["shape"]),
        selection_epsilon=None if selection is None else selection["epsilon"],
        selection_accountant=None if selection is None else recorded_bound(selection).accountant,
        downgraded=state.downgraded,
    )


def cost_of(raw: Mapping[str, float | None]) -> dict[str, float]:
    """Return a cost by limit from its record, where what is not finite is null."""
    return {name: math.inf if value is None else value for name, value in raw.items()}


def cost_to_json(cost: Mapping[str, float]) -> dict[str, float | None]:
    """Return the record of a cost, for ``cost_of``."""
    return {name: value if math.isfinite(value) else None for name, value in cost.items()}

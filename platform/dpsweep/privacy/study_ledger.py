"""The study's side of the ledger: what trials hold of its budget, and what its claim rests on."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.durable import DurableLog, is_locked, read_log
from dpsweep.errors import LedgerError
from dpsweep.privacy.events import CHARGED_PARTS, Plan
from dpsweep.privacy.filter import RESERVATION_SLACK, Cost, FilterAccount, RenyiFilter
from dpsweep.privacy.ledger import STUDY_FILE, trial_file, trial_spent, trials_on_disk
from dpsweep.privacy.selection import Selection

Array = NDArray[np.float64]


@dataclass
class _State:
    """What the records of a study ledger say."""

    study_id: str | None = None
    account: FilterAccount | None = None
    reserved: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    kept: dict[int, str] = field(default_factory=dict)
    num_trials: int | None = None
    selection: Mapping[str, Any] | None = None
    has_begun: bool = False
    downgraded: str | None = None

    def fold(self, record: Mapping[str, Any]) -> None:
        """Bring the state up to date with one more record."""
        kind = record["kind"]
        if kind == "study":
            self.study_id = record["study_id"]
        elif kind == "filter":
            self.account = FilterAccount(RenyiFilter.from_json(record))
        elif kind == "reserve":
            self._fold_reserve(record)
        elif kind == "settle":
            self._fold_settle(record)
        elif kind == "num_trials":
            self.num_trials = record["num_trials"]
        elif kind == "selection":
            self.selection = record
        elif kind == "begin_selection":
            self.has_begun = True
        elif kind == "downgrade":
            self.downgraded = self.downgraded or record["reason"]

    def _fold_reserve(self, record: Mapping[str, Any]) -> None:
        trial = record["trial"]
        self.reserved[trial] = record
        self.running.add(trial)
        self.kept.pop(trial, None)
        if self.account is not None and not self.account.reserve(trial, record["cost"]):
            raise LedgerError(f"the reservation of trial {trial} on record does not fit")

    def _fold_settle(self, record: Mapping[str, Any]) -> None:
        trial = record["trial"]
        self.running.discard(trial)
        self.kept.pop(trial, None)
        if self.account is not None:
            if record["cost"] is None:  # its process may live: it holds what it held
                self.kept[trial] = record["state"]
            else:
                self.account.settle(trial, _cost_of(record["cost"]))


class StudyLedger:
    """Admits trials to a study, within the budget of its filter if it has one.

    Guarantees:
        Every record is on disk before the method that writes it returns, so what a study may still
        spend survives ``kill -9`` of the driver: a trial that is reserved and not settled counts
        with its whole reservation, and a settled one with what its own ledger file says it charged.
        With a filter, the sum of both never passes the budget in either part of the records, for
        any number of trials at once; with ``TrialLedger`` refusing a charge over the reservation,
        this is the condition of the Renyi filter (``RenyiFilter``, with its sources).

        Not covered: a ledger file edited by hand, and a whole directory replaced by an older copy.

    Args:
        directory: Where the ledger files of a study lie.
    Raises:
        LedgerError: Another process writes it, it is damaged, or it was lost while the ledgers of
            its trials were not.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = DurableLog(directory / STUDY_FILE)
        try:
            self._state = _State()
            for record in self._log.records:
                self._state.fold(record)
            if self._state.study_id is None:
                self._refuse_lost_history()
                self._append({"kind": "study", "study_id": secrets.token_hex(16)})
            if self._state.account is not None:
                self._refuse_lost_history()
                self._settle_again()
        except BaseException:
            self._log.close()
            raise

    def _append(self, record: Mapping[str, Any]) -> None:
        self._state.fold(self._log.append(record))

    def _refuse_lost_history(self) -> None:
        strays = set(trials_on_disk(self.directory)) - set(self._state.reserved)
        if strays:
            raise LedgerError(
                f"{self._log.path} does not know trials whose ledgers lie beside it: "
                f"{', '.join(map(str, sorted(strays)))}",
                because="it was deleted, truncated or replaced by an older copy",
                fix="restore it, or start a new study under another name",
            )

    def _settle_again(self) -> None:
        """Read what settled trials charged once more: their files may know more by now."""
        account = self._state.account
        assert account is not None
        for trial in sorted(set(self._state.reserved) - self._state.running):
            if trial in self._state.kept:
                self._settle_kept(trial)
                continue
            actual = account.filter.cost(trial_spent(self.directory, trial))
            if not all(actual[part] <= account.settled(trial)[part] for part in CHARGED_PARTS):
                self._settle(trial, "charged after its end", actual)

    @property
    def study_id(self) -> str:
        """Random name of this study, for ledgers that several studies share."""
        assert self._state.study_id is not None
        return self._state.study_id

    def open_filter(self, make: Callable[[], RenyiFilter]) -> RenyiFilter:
        """Return the study's filter: the one on record, or else a new one, written durably.

        Args:
            make: Called if there is none yet; must not look at private data.
        Raises:
            LedgerError: Trials were admitted without one; a filter is fixed before the first.
        """
        if self._state.account is None:
            if self._state.reserved:
                raise LedgerError(
                    f"{self._log.path} admitted trials without a filter",
                    because="a Renyi filter must be fixed before the first trial",
                    fix="start a new study under another name",
                )
            self._append({"kind": "filter", **make().to_json()})
        account = self._state.account
        assert account is not None
        return account.filter

    def reserve(self, trial: int, plan: Plan, *, epsilon: float) -> bool:
        """Write what a trial may charge at most durably, before it is launched or continued.

        Args:
            trial: Trial number. A trial that runs already keeps its reservation; a paused one gets
                a new one, of which what it has charged so far is a part.
            plan: Everything the trial may charge, from its first event on: training and scores.
            epsilon: Of the whole plan alone, for readers.
        Returns:
            False if it does not fit into the budget; nothing was written then.
        Raises:
            LedgerError: The trial holds a reservation for another plan.
        """
        state, account = self._state, self._state.account
        known, digest = state.reserved.get(trial), _digest(plan)
        is_same = known is not None and known.get("plan_sha256") == digest
        if account is not None and known is not None and not is_same:
            raise LedgerError(f"trial {trial} was admitted with another plan; it cannot get more")
        if is_same and (account is None or trial in state.running):
            return True
        record = {
            "kind": "reserve",
            "trial": trial,
            "num_events": len(plan),
            "plan_sha256": digest,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
        }
        if account is not None:
            cost = account.filter.cost(plan)
            if not self._fits(account, cost, trial):
                return False
            record["cost"] = cost
        self._append(record)
        return True

    def fits(self, plan: Plan) -> bool:
        """Say whether a new trial with this plan would be admitted now; always, without filter."""
        account = self._state.account
        return account is None or self._fits(account, account.filter.cost(plan))

    def _fits(self, account: FilterAccount, cost: Cost, trial: int | None = None) -> bool:
        """Ask the account, and once more after looking for lost trials that have ended by now."""
        if account.fits(cost, trial=trial):
            return True
        for kept in sorted(self._state.kept):
            self._settle_kept(kept)
        return account.fits(cost, trial=trial)

    def settle(self, trial: int, state: str, *, died: bool = False, at_least: int = 0) -> None:
        """Write that a trial has ended or pauses; what it did not charge goes back to the study.

        Args:
            trial: Trial number.
            state: How: ``finished``, ``pruned``, ``failed`` or ``paused``.
            died: Its process is said to be dead. If one still holds its ledger file, it may charge
                more, so the reservation is kept until the file is free.
            at_least: Number of events that the trial is known to have charged.
        Raises:
            LedgerError: The trial's ledger file is damaged, or was lost.
        """
        account = self._state.account
        if account is None:
            self._append({"kind": "settle", "trial": trial, "state": state})
            return
        if died and is_locked(trial_file(self.directory, trial)):
            self._append({"kind": "settle", "trial": trial, "state": state, "cost": None})
            return
        spent = trial_spent(self.directory, trial, at_least=at_least)
        self._settle(trial, state, account.filter.cost(spent))

    def _settle(self, trial: int, state: str, actual: Cost) -> None:
        record = self._state.reserved.get(trial)
        reserved = dict.fromkeys(CHARGED_PARTS, 0.0) if record is None else record["cost"]
        self._append(
            {"kind": "settle", "trial": trial, "state": state, "cost": _cost_to_json(actual)}
        )
        if not all(
            actual[part] <= reserved[part] * (1 + RESERVATION_SLACK) for part in CHARGED_PARTS
        ):
            self.downgrade(f"trial {trial} charged more than its reservation of the study's budget")
        elif self._state.account is not None and self._state.account.is_over:
            self.downgrade(f"the study's budget was passed: trial {trial} {state}")

    def _settle_kept(self, trial: int) -> None:
        """Settle a trial whose process was still alive, if it is not any more."""
        if not is_locked(trial_file(self.directory, trial)):
            self.settle(trial, self._state.kept[trial])

    @property
    def num_in_flight(self) -> int:
        """Number of trials that were admitted and are not settled."""
        return len(self._state.running)

    @property
    def committed(self) -> dict[str, float] | None:
        """Renyi cost that is reserved or charged, by part; None without filter."""
        account = self._state.account
        return None if account is None else account.committed

    @property
    def remaining(self) -> dict[str, float] | None:
        """Renyi cost that can still be reserved, by part; None without filter."""
        account = self._state.account
        return None if account is None else account.remaining

    @property
    def has_begun_selection(self) -> bool:
        """True once trials of a selection may have run."""
        return self._state.has_begun

    def begin_selection(self) -> None:
        """Write that the number of trials is drawn and that they begin to run."""
        if not self._state.has_begun:
            self._append({"kind": "begin_selection"})

    @property
    def has_num_trials(self) -> bool:
        """True once the number of trials of a selection was drawn."""
        return self._state.num_trials is not None

    def num_trials(self, draw: Callable[[], int]) -> int:
        """Return the number of trials of a selection: drawn once, and then never again.

        The number is secret: so is this file, in a study of that mode.
        """
        if self._state.num_trials is None:
            self._append({"kind": "num_trials", "num_trials": int(draw())})
        assert self._state.num_trials is not None
        return self._state.num_trials

    def charge_selection(
        self, selection: Selection, curve: Array, epsilon: float, delta: float
    ) -> tuple[Array, float]:
        """Return curve and epsilon of the study's selection: those on record, or else these.

        Args:
            selection: Distribution of the number of trials.
            curve: Renyi curve that no trial may exceed.
            epsilon: Of the released winner.
            delta: Of that epsilon.
        Raises:
            LedgerError: Another selection or delta is on record.
        """
        known = self._state.selection
        asked = {"mean": selection.mean, "shape": selection.shape, "delta": delta}
        if known is None:
            values = [value if math.isfinite(value) else None for value in curve.tolist()]
            self._append({"kind": "selection", **asked, "curve": values, "epsilon": epsilon})
            known = self._state.selection
            assert known is not None
        if {key: known[key] for key in asked} != asked:
            raise LedgerError(
                f"{self._log.path} holds another selection than {asked}",
                fix="start a new study under another name",
            )
        recorded = [math.inf if value is None else value for value in known["curve"]]
        return np.array(recorded), known["epsilon"]

    @property
    def downgraded(self) -> str | None:
        """Why the study lost its claim, or None; the first reason, for good."""
        return self._state.downgraded

    def downgrade(self, reason: str) -> None:
        """Write that a precondition of the study's claim was broken; nothing takes it back."""
        if self._state.downgraded is None:
            self._append({"kind": "downgrade", "reason": reason})

    def close(self) -> None:
        """Release the file."""
        self._log.close()


@dataclass(frozen=True)
class StudyAccount:
    """What a study ledger says, for readers.

    Attributes:
        study_id: Random name of the study, or None: there is no ledger.
        filter: Of a composed study, or None.
        committed: Renyi cost reserved or charged by part; empty without filter.
        selection: Of a study in the mode select, or None.
        selection_epsilon: What its winner costs, or None.
        downgraded: Why the study lost its claim, or None.
    """

    study_id: str | None = None
    filter: RenyiFilter | None = None
    committed: Mapping[str, float] = field(default_factory=dict)
    selection: Selection | None = None
    selection_epsilon: float | None = None
    downgraded: str | None = None


def read_study_account(directory: Path) -> StudyAccount:
    """Return what the ledger of a study says now; needs no lock.

    Raises:
        LedgerError: It is damaged.
    """
    state = _State()
    for record in read_log(directory / STUDY_FILE):
        state.fold(record)
    account, selection = state.account, state.selection
    return StudyAccount(
        study_id=state.study_id,
        filter=None if account is None else account.filter,
        committed={} if account is None else account.committed,
        selection=None if selection is None else Selection(selection["mean"], selection["shape"]),
        selection_epsilon=None if selection is None else selection["epsilon"],
        downgraded=state.downgraded,
    )


def _digest(plan: Plan) -> str:
    """Return the SHA-256 of a plan; the plan itself is kept with the trial."""
    text = json.dumps(plan.merged().to_json(), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _cost_to_json(cost: Cost) -> dict[str, float | None]:
    return {part: value if math.isfinite(value) else None for part, value in cost.items()}


def _cost_of(raw: Mapping[str, float | None]) -> dict[str, float]:
    return {part: math.inf if value is None else value for part, value in raw.items()}

"""The study's side of the ledger: what trials hold of its budget, and what its claim rests on.

``study_state`` is what its records say, ``history`` what they must agree with.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import LedgerError, LockedError
from dpsweep.foundation.logs import is_locked, open_log
from dpsweep.ledgers.admission import other_task, plan_digest
from dpsweep.ledgers.history import (
    check_journal,
    check_strays,
    check_terms,
    check_trials,
    unstarted,
)
from dpsweep.ledgers.study_state import UNSTARTED, cost_to_json, state_of
from dpsweep.ledgers.trial import STUDY_FILE, make_trial_file, trial_file, trial_spent
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.base import Composition, Cost
from dpsweep.privacy.composition.split import FINAL_RUN
from dpsweep.privacy.events import Plan
from dpsweep.privacy.selection.bounds import TrialBound
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import recorded_bound

Array = NDArray[np.float64]


class StudyLedger:
    """Admits trials to a study, within its composition if it has one.

    Guarantees:
        Every record is on disk before the method that writes it returns, so what a study may still
        spend survives ``kill -9`` of the driver: a trial that is reserved and not settled counts
        with its whole reservation, and a settled one with what its own ledger file says it charged.
        With a composition, the sum of both never passes any of its limits, for any number of trials
        at once; with ``TrialLedger`` refusing a charge over the reservation, this is the condition
        of its theorem (``RenyiFilter``, ``DeclaredComposition``, with their sources). A trial that
        has ended is never admitted again, and files that were deleted give nothing back: what this
        ledger, the trials' own and the journal say must agree (``history``), or nothing runs.

        Not covered: a ledger file edited by hand, and files replaced by older copies of themselves
        where no other file knows better (of a whole directory, none does).

    Args:
        directory: Where the ledger files of a study lie.
        terms: What the study may claim rests on, by dotted key of its spec: written down with the
            first record, and the same ever after. None leaves them out.
        in_journal: Trials that the study's journal knows; None compares nothing.
    Raises:
        LedgerError: Another process writes it, it is damaged, it was launched on other terms, or
            it, a trial's ledger or the journal was lost while the others were not.
    """

    def __init__(
        self,
        directory: LogPath,
        *,
        terms: Mapping[str, Any] | None = None,
        in_journal: Collection[int] | None = None,
    ) -> None:
        self.directory = directory
        self._path = directory / STUDY_FILE
        self._log = open_log(self._path)
        try:
            self._state = state_of(self._path, self._log.records)
            check_strays(directory, self._state)
            if in_journal is not None:
                check_journal(directory, self._state, in_journal)
            if self._state.study_id is None:
                new = {"kind": "study", "study_id": secrets.token_hex(16)}
                self._append(new if terms is None else {**new, "terms": dict(terms)})
            elif terms is not None:
                check_terms(directory, self._state, terms)
            check_trials(directory, self._state)
            if self._state.account is not None:
                self._settle_again()
        except BaseException:
            self._log.close()
            raise

    def _append(self, record: Mapping[str, Any]) -> None:
        self._state.fold(self._log.append(record))

    def _settle_again(self) -> None:
        """Read what settled trials charged once more: their files may know more by now."""
        account = self._state.account
        assert account is not None
        for trial in sorted(set(self._state.reserved) - self._state.running):
            if trial in self._state.kept:
                self._settle_kept(trial)
                continue
            spent = trial_spent(self.directory, trial)
            actual, before = account.composition.cost(spent), account.settled(trial)
            if not all(actual[name] <= before[name] for name in actual):
                is_paused = self._state.settled[trial]["state"] == "paused"
                self._settle(trial, "paused" if is_paused else "charged after its end", spent)

    def settle_lost(self, in_journal: Mapping[int, str | None]) -> None:
        """Settle trials whose end a driver that was killed did not write here any more.

        Args:
            in_journal: Trials that the journal knows, with their state if they have ended.
        """
        for trial in sorted(unstarted(self.directory, self._state, in_journal)):
            self.settle(trial, UNSTARTED, died=True)
        for trial in sorted(self._state.running):
            state = in_journal.get(trial)
            if state is not None:
                self.settle(trial, state, died=True)

    @property
    def study_id(self) -> str:
        """Random name of this study, for ledgers that several studies share."""
        assert self._state.study_id is not None
        return self._state.study_id

    def open_composition(self, make: Callable[[], Composition]) -> Composition:
        """Return the study's composition: the one on record, or else a new one, written durably.

        Args:
            make: Called if there is none yet; must not look at private data.
        Raises:
            LedgerError: Trials were admitted without one; it is fixed before the first.
        """
        if self._state.account is None:
            if self._state.reserved:
                raise LedgerError(
                    f"{self._path} admitted trials without a budget of the study",
                    because="a composition must be fixed before the first trial",
                    fix="start a new study under another name",
                )
            chosen = make()
            self._append({"kind": chosen.kind, **chosen.to_json()})
        else:
            self._state.account.composition.verify()
        account = self._state.account
        assert account is not None
        return account.composition

    def reserve(
        self,
        trial: int,
        plan: Plan,
        *,
        epsilon: float,
        task: str = "",
        at_first: Plan | None = None,
    ) -> bool:
        """Write what a trial may charge at most durably, before it is launched or continued.

        Args:
            trial: Trial number. A trial that runs already keeps its reservation; a paused one gets
                a new one, of which what it has charged so far is a part.
            plan: Everything the trial may charge, from its first event on: training and scores.
            epsilon: Of the whole plan alone, for readers.
            task: SHA-256 of all that the trial is to do (``TrialTask.digest``), which its process
                compares; "" where nothing else than the plan is known.
            at_first: What it may charge of this until it is promoted, that is until its whole plan
                is reserved, once and for all; None: all of it.
        Returns:
            False if it does not fit into the budget; nothing was written then.
        Raises:
            LedgerError: The trial was admitted with another plan or task, or has ended.
        """
        state, account = self._state, self._state.account
        if self.has_ended(trial):
            raise LedgerError(
                f"trial {trial} has {state.settled[trial]['state']} already; what is settled is "
                "not reserved again",
                because="it would spend the study's budget a second time",
            )
        # One of which nothing ran may be another trial now: the journal never knew it.
        reserved = None if state.is_unstarted(trial) else state.reserved.get(trial)
        digest = plan_digest(plan)
        is_same = reserved is not None and reserved.get("plan_sha256") == digest
        if reserved is not None and task and reserved.get("task_sha256", task) != task:
            raise other_task(trial)
        if account is not None and reserved is not None and not is_same:
            raise LedgerError(f"trial {trial} was admitted with another plan; it cannot get more")
        if reserved is not None and "num_reserved" not in reserved:
            at_first = None
        if is_same and trial in state.running:
            # Nobody is promoted who runs: what is before a barrier must be over.
            return reserved is None or at_first is not None or "num_reserved" not in reserved
        record: dict[str, Any] = {
            "kind": "reserve",
            "trial": trial,
            "has_file": True,
            "num_events": len(plan),
            "plan_sha256": digest,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            **({"task_sha256": task} if task else {}),
            **({} if at_first is None else {"num_reserved": len(at_first)}),
        }
        if account is not None:
            cost = account.composition.cost(plan if at_first is None else at_first)
            if not self._fits(account, cost, trial):
                return False
            record["cost"] = cost
        make_trial_file(self.directory, trial, self.study_id)
        self._append(record)
        return True

    def has_ended(self, trial: int) -> bool:
        """Say whether a trial is settled for good: finished, pruned or failed."""
        settled = self._state.settled.get(trial)
        if trial in self._state.running or settled is None:
            return False
        return settled["state"] not in ("paused", UNSTARTED)

    def fits(self, plan: Plan) -> bool:
        """Say whether a new trial with this plan would be admitted now; always, without budget."""
        account = self._state.account
        return account is None or self._fits(account, account.composition.cost(plan))

    def _fits(self, account: CompositionAccount, cost: Cost, trial: int | None = None) -> bool:
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
        path = trial_file(self.directory, trial)
        if self._state.reserved.get(trial, {}).get("has_file") and not path.exists():
            raise LedgerError(
                f"{path} is missing: trial {trial} ends, and what it has charged is not known",
                because="the file was deleted while the trial ran",
                fix="restore it, or start a new study under another name",
            )
        with contextlib.ExitStack() as stack:
            if self._state.account is not None and died and path.exists():
                try:  # held while this is written, so that no late process begins meanwhile
                    stack.enter_context(open_log(path))
                except LockedError:
                    self._append({"kind": "settle", "trial": trial, "state": state, "cost": None})
                    return
            self._settle(trial, state, trial_spent(self.directory, trial, at_least=at_least))

    def _settle(self, trial: int, state: str, spent: Plan) -> None:
        settled = {"kind": "settle", "trial": trial, "state": state, "charged": len(spent)}
        account = self._state.account
        if account is None:
            self._append(settled)
            return
        composition = account.composition
        actual, record = composition.cost(spent), self._state.reserved.get(trial)
        reserved = dict.fromkeys(actual, 0.0) if record is None else record["cost"]
        self._append({**settled, "cost": cost_to_json(actual)})
        if not all(actual[name] <= reserved[name] * (1 + composition.slack) for name in actual):
            self.downgrade(f"trial {trial} charged more than its reservation of the study's budget")
        elif account.is_over:
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
        """What is reserved or charged, by limit; None without a composition."""
        account = self._state.account
        return None if account is None else account.committed

    @property
    def remaining(self) -> dict[str, float] | None:
        """What can still be reserved, by limit; None without a composition."""
        account = self._state.account
        return None if account is None else account.remaining

    @property
    def on_dataset(self) -> dict[int, int]:
        """Trials as a dataset ledger may know them (``StudyState.on_dataset``)."""
        return self._state.on_dataset

    @property
    def admitted(self) -> set[int]:
        """Numbers of all trials that were ever admitted, whether they have begun or not."""
        return set(self._state.reserved)

    @property
    def final_run(self) -> int | None:
        """Number of the trial that holds, or held, the final run of a split study; None: none."""
        for trial, record in self._state.reserved.items():
            if (record.get("cost") or {}).get(FINAL_RUN):
                return trial
        return None

    @property
    def is_on_dataset(self) -> bool:
        """True once the study was charged to its dataset ledger."""
        return self._state.is_on_dataset

    def note_dataset(self) -> None:
        """Write that the study is charged to its dataset ledger: a file without it was lost."""
        if not self._state.is_on_dataset:
            self._append({"kind": "dataset_charge"})

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

    def num_trials(self, draw: Callable[[], int], part: Callable[[], str] | None = None) -> int:
        """Return the number of trials of a selection: drawn once, and then never again.

        It is secret, and so is ``part_seed``, which ``part`` draws where there is such a part, in
        the same record: so is this file, in a study of that mode.
        """
        if self._state.num_trials is None:
            seed = {} if part is None else {"part_seed": part()}
            self._append({"kind": "num_trials", "num_trials": int(draw()), **seed})
        assert self._state.num_trials is not None
        return self._state.num_trials

    @property
    def part_seed(self) -> str | None:
        """What decides who is in the secret part of the records (``SweepData.for_secret_part``)."""
        return self._state.part_seed

    def charge_selection(
        self, selection: Selection, bound: TrialBound, epsilon: float, delta: float
    ) -> tuple[TrialBound, float]:
        """Return bound and epsilon of the study's selection: those on record, or else these.

        Args:
            selection: Distribution of the number of trials.
            bound: What no trial may exceed.
            epsilon: Of the released winner.
            delta: Of that epsilon.
        Raises:
            LedgerError: Another selection or delta is on record.
        """
        record = self._state.selection
        asked = {"mean": selection.mean, "shape": selection.shape, "delta": delta}
        if record is None:
            self._append({"kind": "selection", **asked, **bound.to_json(), "epsilon": epsilon})
            record = self._state.selection
            assert record is not None
        if {key: record[key] for key in asked} != asked:
            raise LedgerError(
                f"{self._path} holds another selection than {asked}",
                fix="start a new study under another name",
            )
        return recorded_bound(record), record["epsilon"]

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

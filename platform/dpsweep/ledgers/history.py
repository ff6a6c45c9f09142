"""History that must agree before anything is said or spent: of ledgers, trials and journal.

A study is spread over files that anybody with a shell can delete one by one. Each of the checks
here takes one file's word against another's; what does not agree was lost, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import LedgerError
from dpsweep.foundation.words import numbers
from dpsweep.ledgers.study_state import StudyState, cost_of
from dpsweep.ledgers.trial import (
    STUDY_FILE,
    charged_events,
    is_used,
    read_records,
    trial_file,
    trials_on_disk,
)
from dpsweep.privacy.statement import shown_epsilon

#: By how much an account of old charges may differ from the one that was written with them.
COST_TOLERANCE = 1e-6
_NO_BUDGET = "one without a budget of the whole study"
_RESTORE = "restore it, or start a new study under another name"


def check_trials(directory: LogPath, state: StudyState) -> None:
    """Refuse a study whose trials' ledgers say less than the study's own says they have spent.

    Guarantees:
        A trial that was settled has a ledger file with at least as many charged events as then, at
        no smaller cost; one that was admitted has a file, since it is made before its reservation
        is written. So whoever deletes or truncates a trial's ledger gets nothing back.

        Not covered: a file of a trial that had not ended, replaced by an older copy of itself,
        beyond what reports and checkpoints know of it; ledgers that were written before
        reservations named files, where a trial had not ended.

    Args:
        directory: Where the ledger files of the study lie.
        state: What the study's ledger says.
    Raises:
        LedgerError: A file is damaged, missing, or holds too little.
    """
    files = trials_on_disk(directory)
    for trial, reserved in sorted(state.reserved.items()):
        path = trial_file(directory, trial)
        if reserved.get("has_file") and trial not in files:
            raise LedgerError(
                f"{path} is missing, and {STUDY_FILE} says that trial {trial} was admitted",
                because="it was deleted; what the trial has spent is not known any more",
                fix=_RESTORE,
            )
        settled = state.settled.get(trial)
        if settled is None:
            continue
        spent = charged_events(read_records(path))
        if len(spent) < settled.get("charged", 0):
            raise _cheaper(path, f"{len(spent)} charged events", f"{settled['charged']}")
        if state.account is None or settled["cost"] is None:
            continue
        composition, then = state.account.composition, cost_of(settled["cost"])
        for name, actual in composition.cost(spent).items():
            if actual < then[name] * (1 - COST_TOLERANCE):
                raise _cheaper(path, composition.words(name, actual), f"{then[name]:.6g}")


def _cheaper(path: LogPath, holds: str, then: str) -> LedgerError:
    return LedgerError(
        f"{path} holds {holds}, and {STUDY_FILE} settled the trial with {then}",
        because="the file was deleted, truncated or replaced by an older one",
        fix=_RESTORE,
    )


def check_reported(
    directory: LogPath, trial: int, epsilon: float, *, reported: float | None
) -> None:
    """Refuse a trial whose ledger shows less than its reports did: it never goes down.

    Args:
        directory: Of the ledgers.
        trial: Its number.
        epsilon: By its ledger.
        reported: By its last report; None: infinite.
    Raises:
        LedgerError: It shows less.
    """
    stood = math.inf if reported is None else reported
    if epsilon >= stood * (1 - COST_TOLERANCE):
        return
    raise LedgerError(
        f"{trial_file(directory, trial)} shows epsilon={shown_epsilon(epsilon)}, and the trial has "
        f"reported {shown_epsilon(stood)}",
        because="one of ledger and journal was edited, or replaced by another study's",
        fix="restore it; without it nothing true can be said of this trial's epsilon",
    )


def check_strays(directory: LogPath, state: StudyState) -> None:
    """Refuse a study ledger that does not know trials which have charged something.

    Raises:
        LedgerError: It was deleted, truncated or replaced by an older copy.
    """
    files = trials_on_disk(directory)
    unknown = set(files) - set(state.reserved) - state.known
    strays = [n for n in sorted(unknown) if any(map(is_used, files[n]))]
    if strays:
        raise LedgerError(
            f"{directory / STUDY_FILE} does not know trials whose ledgers lie beside it: "
            f"{numbers(strays)}",
            because="it was deleted, truncated or replaced by an older copy",
            fix=_RESTORE,
        )


def check_journal(directory: LogPath, state: StudyState, in_journal: Collection[int]) -> None:
    """Refuse a study whose journal and ledger do not know the same trials.

    A trial that was reserved and neither settled nor opened may be missing in the journal: its
    driver died between the two records.

    Args:
        directory: Where the ledger files of the study lie.
        state: What the study's ledger says; of a selection, the winner is trial 0.
        in_journal: Numbers of the trials that the journal knows.
    Raises:
        LedgerError: One of the two was deleted, truncated or replaced.
    """
    path = directory / STUDY_FILE
    lost = sorted(set(in_journal) - state.known)
    if lost:
        raise LedgerError(
            f"the journal knows trials that {path} does not: {numbers(lost)}",
            because="the ledger was deleted, truncated or replaced by an older copy",
            fix=_RESTORE,
        )
    if state.has_begun:  # the trials of a selection are in a journal of their own, which is erased
        return
    unknown = state.known - set(in_journal) - unstarted(directory, state, in_journal)
    if unknown:
        raise LedgerError(
            f"{path} knows trials that the journal does not: {numbers(unknown)}",
            because="the journal was deleted, truncated or replaced; run again, they would spend "
            "the study's budget a second time",
            fix=_RESTORE,
        )


def check_begun(directory: LogPath, state: StudyState, *, is_new: bool) -> None:
    """Refuse a selection that has begun and whose journal knows nothing of it.

    Args:
        directory: Where the ledger files of the study lie.
        state: What the study's ledger says.
        is_new: Whether the journal says that nothing has happened yet.
    Raises:
        LedgerError: The journal was deleted, truncated or replaced.
    """
    if state.has_begun and is_new:
        raise LedgerError(
            f"{directory / STUDY_FILE} says that trials have begun, and the journal that none has",
            because="the journal was deleted, truncated or replaced by an older copy",
            fix="restore it; without it nothing true can be said of this study",
        )


def unstarted(directory: LogPath, state: StudyState, in_journal: Collection[int]) -> set[int]:
    """Return the trials that were reserved by a driver that died before anybody heard of them."""
    waiting = state.running - set(in_journal)
    return {trial for trial in waiting if not is_used(trial_file(directory, trial))}


def check_terms(directory: LogPath, state: StudyState, terms: Mapping[str, Any]) -> None:
    """Refuse a spec that says something else than the terms that the ledger enforced.

    Args:
        directory: Where the ledger files of the study lie.
        state: What the study's ledger says.
        terms: What the spec says now, by dotted key. Keys that the record lacks are newer than it.
    Raises:
        LedgerError: Spec or ledger was edited after the study was launched.
    """
    enforced = dict(state.terms or {})
    if state.account is not None:
        kept = state.account.composition
        enforced |= {"privacy.study_epsilon": kept.target_epsilon, "privacy.delta": kept.delta}
        enforced["privacy.accounting"] = "composed"
        if "privacy.composition" in terms:
            enforced["privacy.composition"] = kept.choice
        enforced["search.on.split"] = kept.searched_share
    elif state.selection is not None:
        enforced |= {"privacy.accounting": "select", "privacy.delta": state.selection["delta"]}
        enforced["search.on.subset"] = (state.selection.get("subset") or {}).get("rate")
    elif state.terms is None and state.num_trials is None and state.known:
        # Of before terms were written down; a ledger with a number of trials is a sealed one.
        is_claimed = terms.get("privacy.accounting") in ("composed", "select")
        enforced |= {"privacy.accounting": _NO_BUDGET} if is_claimed else {}
    differ = {key: value for key, value in enforced.items() if terms.get(key) != value}
    if differ:
        path = directory / STUDY_FILE
        differences = "; ".join(
            f"{key} is {_shown(terms.get(key))}, and the study was launched with {_shown(value)}"
            for key, value in sorted(differ.items())
        )
        raise LedgerError(
            f"the spec of the study is not the one whose terms {path} holds: {differences}",
            because="spec.yaml was edited after the launch; what the study may claim is what its "
            "ledger enforced",
            fix="undo the change, or start a new study under another name",
        )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)

"""Giving up of a study's claim, wherever the claim is kept."""

from __future__ import annotations

import contextlib

from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.privacy.modes import UNACCOUNTED
from dpsweep.results.coverage import meaning_of_each
from dpsweep.running import entries
from dpsweep.search.optuna_file import STORAGE_ERRORS, place_of
from dpsweep.study.study import Observer, Study


def give_up_claim(study: Study, ledger: StudyLedger, reason: str) -> None:
    """Write durably, wherever the study's claim is kept, that it does not hold any more.

    The dataset ledger first: whatever happens to this process then, it admits no other study.
    """
    dataset_ledger = study.spec.privacy.dataset_ledger
    try:
        if dataset_ledger is not None:
            DatasetLedger(dataset_ledger).break_claim(ledger.study_id, reason)
    finally:
        ledger.downgrade(reason)
    study.write(entries.study_downgraded(study, reason))
    # A file that cannot be written now contradicts the journal: the next launch makes it anew.
    with contextlib.suppress(*STORAGE_ERRORS):
        place_of(study.files.optuna).relabel(meaning_of_each(study.spec, UNACCOUNTED))


def give_up_aloud(study: Study, ledger: StudyLedger, reason: str, observer: Observer) -> None:
    """Give up the study's claim, and say whether that could be written everywhere."""
    words = "its claim does not hold any more, and not all records of that can be written"
    try:
        give_up_claim(study, ledger, reason)
        words = "downgraded to accounting unaccounted, for good"
    finally:
        observer.on_message(f"{words}: {reason}")

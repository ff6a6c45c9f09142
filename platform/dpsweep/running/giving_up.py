"""Giving up of a study's claim, wherever the claim is kept."""

from __future__ import annotations

from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.running import entries
from dpsweep.study.study import Study


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

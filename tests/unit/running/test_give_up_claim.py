"""In which order a study's claim is given up: the ledger that admits other studies comes first."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpsweep.foundation.errors import LockedError
from dpsweep.ledgers.dataset import DatasetLedger, read_dataset_ledger
from dpsweep.running import giving_up
from dpsweep.search.optuna_file import OptunaFile
from dpsweep.study.events import StudyDowngraded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "digits.budget"
    DatasetLedger(path).reserve(
        "id", "study", directory=tmp_path, dataset="digits", parts={}, accounting="composed",
        epsilon=1.0, delta=1e-5, cap_epsilon=9.0, cap_delta=1e-4,
    )  # fmt: skip
    return path


def given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, list[str]]:
    done: list[str] = []

    def downgrade(reason: str) -> None:
        is_broken = read_dataset_ledger(path).broken is not None
        done.append(f"ledger, {'after' if is_broken else 'without'} the dataset's")

    monkeypatch.setattr(
        giving_up.entries, "study_downgraded", lambda files, reason: StudyDowngraded(reason)
    )
    monkeypatch.setattr(giving_up, "meaning_of_each", lambda spec, mode: f"terms, {mode.name}")
    study = SimpleNamespace(
        spec=SimpleNamespace(privacy=SimpleNamespace(dataset_ledger=str(path))),
        files=SimpleNamespace(optuna=path.with_name("optuna.db")),
        write=lambda event: done.append(event.kind),
    )
    return study, SimpleNamespace(study_id="id", downgrade=downgrade), done


def test_the_dataset_ledger_is_broken_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, ledger, done = given_up(path, monkeypatch)
    giving_up.give_up_claim(study, ledger, "a reason")
    assert done == ["ledger, after the dataset's", "study_downgraded"]


def test_optuna_s_file_is_told_last_and_one_that_is_held_stops_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, ledger, done = given_up(path, monkeypatch)

    def relabel(place: OptunaFile, meaning: str) -> None:
        done.append(f"{place.path.name}: {meaning}")
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(OptunaFile, "relabel", relabel)
    giving_up.give_up_claim(study, ledger, "a reason")
    assert done[-2:] == ["study_downgraded", "optuna.db: terms, unaccounted"]


def test_a_dataset_ledger_that_stays_locked_does_not_save_the_claim(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next launch finds the study's own ledger downgraded and breaks the dataset's."""
    study, ledger, done = given_up(path, monkeypatch)

    def locked(self: DatasetLedger, study_id: str, reason: str) -> None:
        raise LockedError("held")

    monkeypatch.setattr(DatasetLedger, "break_claim", locked)
    with pytest.raises(LockedError):
        giving_up.give_up_claim(study, ledger, "a reason")
    assert done == ["ledger, without the dataset's"]

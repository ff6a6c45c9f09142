"""File of Optuna's study: damage, contradictions to the journal, and terms of its epsilons."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import optuna
from optuna.trial import TrialState as OptunaState

from dpsweep.foundation.durable import damage_of_sqlite

#: User attributes of a trial that has ended: its epsilon, and all that this depends on.
EPSILON, MEANING = "dp/epsilon", "dp/epsilon_is"


def problem_of(path: Path) -> str:
    """Say what is wrong with a file of SQLite's as such; empty if nothing is, or it is not there.

    Raises:
        sqlite3.OperationalError: Another program holds it.
    """
    if not path.is_file():
        return "is no file" if path.exists() else ""
    damage = damage_of_sqlite(path)
    return f"is damaged: {damage}" if damage else ""


def difference(study: optuna.Study, known: Mapping[int, optuna.trial.FrozenTrial]) -> str:
    """Say where a study contradicts the journal; empty if it only lacks an end or nothing."""
    trials = study.get_trials(deepcopy=False)
    for number, wanted in known.items():
        if number >= len(trials):
            return f"does not know trial {number}"
        trial = trials[number]
        is_behind = trial.state is OptunaState.RUNNING and wanted.state.is_finished()
        if wanted.params and trial.params != wanted.params:
            return f"has another configuration for trial {number}"
        if trial.state is not wanted.state and not is_behind:
            return f"says that trial {number} is {trial.state.name.lower()}"
        is_scored = wanted.state is OptunaState.COMPLETE and not is_behind
        if is_scored and trial.values != wanted.values:
            return f"has another score for trial {number}"
        meanings = {
            each.user_attrs[MEANING] for each in (trial, wanted) if MEANING in each.user_attrs
        }
        if len(meanings) > 1:
            return f"has other terms for the epsilon of trial {number}"
    return ""


def relabel(path: Path, meaning: str) -> None:
    """Give all epsilons of a file other terms, where there is a file.

    Optuna itself changes nothing of a trial that has ended, so this writes to the table in which
    its storage keeps user attributes.

    Args:
        path: SQLite file of a study; a process may have it open.
        meaning: What to say of each epsilon from now on.
    Raises:
        sqlite3.Error: Another program holds the file, or it is damaged.
    """
    if not path.is_file():
        return
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "update trial_user_attributes set value_json = ? where key = ?",
            (json.dumps(meaning), MEANING),
        )

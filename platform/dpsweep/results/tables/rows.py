"""Rows of trials, each with all terms of its epsilon: for data frames and files of other tools."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpsweep.foundation.version import __version__
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.privacy.terms import COLUMNS
from dpsweep.results.claims import Claims
from dpsweep.results.trial import TrialResult
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView

if TYPE_CHECKING:
    from pandas import DataFrame

#: Columns that every row has, before its metrics and hyperparameters.
FIRST = (
    "study", "trial", "run", "state", "reason", "records", "metric", "value", "step", "steps_run",
    "num_steps", "epsilon", *COLUMNS, "released", "study_epsilon", "study_sampling",
    "study_released", "run_id", "model_uri",
)  # fmt: skip
_OF_STUDY = tuple(name for name in COLUMNS if name != "sampling")  # equal in all rows


class Study(Protocol):
    """What rows are made of: a ``SweepResult``."""

    name: str
    spec: SweepSpec
    view: StudyView
    claims: Claims

    @property
    def results(self) -> list[TrialResult]:
        """All trials, by number."""

    @property
    def source(self) -> str:
        """Where it was read, if not in its own files."""

    def state_of(self, trial: TrialResult) -> str:
        """Return a trial's state."""

    def study_statement(self) -> PrivacyStatement | None:
        """Return what may be said of the study as a whole."""


def trial_rows(study: Study) -> list[dict[str, Any]]:
    """Return one flat record per trial, by number, all with the same keys.

    ``FIRST`` comes first, then metrics of the delivered model, then hyperparameters by their own
    names; one that would repeat a name stands as ``config.NAME``. An epsilon without a bound is
    infinite. ``study_epsilon`` is what the study as a whole claims, at the terms of the row but
    for ``study_sampling``; None where it claims nothing, or not of this trial.

    Guarantees:
        Every epsilon has all its terms in its own row. Under ``select`` there is the winner's row
        once it is released, and nothing before.
    """
    trials = study.results
    metrics = sorted({name for trial in trials for name in trial.metrics})
    named = list(dict.fromkeys(name for trial in trials for name in trial.config))
    taken = {*FIRST, *metrics}
    columns = {name: f"config.{name}" if name in taken else name for name in named}
    return [
        {
            **_first_cells(study, trial),
            **{name: trial.metrics.get(name) for name in metrics},
            **{column: trial.config.get(name) for name, column in columns.items()},
        }
        for trial in trials
    ]


def _first_cells(study: Study, trial: TrialResult) -> dict[str, Any]:
    statement, whole = trial.statement, trial.study_statement
    cells = {
        "study": study.name,
        "trial": trial.trial_id,
        "run": study.spec.run_of(trial.trial_id),
        "state": study.state_of(trial),
        "reason": trial.reason,
        "records": study.view.trials[trial.trial_id].records,
        "metric": trial.metric,
        "value": trial.value,
        "step": trial.step,
        "steps_run": trial.steps_run,
        "num_steps": trial.num_steps,
        "epsilon": statement.epsilon,
        **statement.columns(),
        "released": statement.released,
        "study_epsilon": None if whole is None else whole.epsilon,
        "study_sampling": None if whole is None else whole.sampling,
        "study_released": None if whole is None else whole.released,
        "run_id": trial.run_id,
        "model_uri": trial.model_uri,
    }
    return {name: cells[name] for name in FIRST}


def frame_of(study: Study) -> DataFrame:
    """Return a study's trials as a pandas DataFrame (``SweepResult.trials``).

    Columns are those of ``trial_rows`` but for the terms that all rows share, which are in
    ``attrs``: delta, privacy_unit, neighboring_relation, accountant, accounting, and beside them
    ``study``, ``statement`` (what the study as a whole claims, or None), ``downgraded``, ``source``
    and ``version``. pandas keeps ``attrs`` when rows are chosen, and may lose them when frames are
    joined; a file of ``dpsweep export`` has every term in every row.
    """
    import pandas as pd

    rows = trial_rows(study)
    columns = [name for name in (rows[0] if rows else FIRST) if name not in _OF_STUDY]
    frame = pd.DataFrame([{name: row[name] for name in columns} for row in rows], columns=columns)
    frame.attrs = attrs_of(study)
    return frame


def attrs_of(study: Study) -> dict[str, Any]:
    """Return what all rows of a study share, as JSON has it."""
    statement = study.study_statement()
    return {
        "study": study.name,
        **study.claims.epsilon_terms(),
        "statement": None if statement is None else statement.to_json(),
        "downgraded": study.claims.downgraded,
        "source": study.source,
        "version": __version__,
    }


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV: numbers with all their digits, ``inf`` for no bound, lists as JSON."""
    buffer = io.StringIO()
    columns = list(rows[0]) if rows else list(FIRST)
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def json_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a JSON list; no bound is null, for JSON has no infinity."""
    shown = [{name: _finite(value) for name, value in row.items()} for row in rows]
    return json.dumps(shown, indent=2, allow_nan=False) + "\n"


def parquet_bytes(study: Study) -> bytes:
    """Return a study's rows as a Parquet file, with ``attrs`` in its metadata.

    A column whose values are of several kinds is of texts: each value as JSON writes it.
    """
    import pandas as pd

    rows = trial_rows(study)
    columns = list(rows[0]) if rows else list(FIRST)
    frame = pd.DataFrame({name: _column([row[name] for row in rows]) for name in columns})
    frame.attrs = attrs_of(study)
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _column(values: Sequence[Any]) -> list[Any]:
    kinds = {bool if isinstance(v, bool) else type(v) for v in values if v is not None}
    if (len(kinds) <= 1 and not kinds & {list, dict, tuple}) or kinds == {int, float}:
        return list(values)
    return [None if value is None else json.dumps(_finite(value)) for value in values]


def _cell(value: Any) -> Any:
    return json.dumps(_finite(value)) if isinstance(value, (dict, list, tuple)) else value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

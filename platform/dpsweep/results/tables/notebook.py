"""A study in a notebook: HTML, every word of a user's escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.choosing import Choice
from dpsweep.results.claims import Claims
from dpsweep.results.tables.html import heading, paragraph, table
from dpsweep.results.trial import TrialResult

_MOST_ROWS = 50


class Study(Protocol):
    """What a page of a study is made of: a ``SweepResult``."""

    name: str
    claims: Claims

    @property
    def results(self) -> list[TrialResult]:
        """All trials, by number."""

    @property
    def varied(self) -> list[str]:
        """Names of the hyperparameters that the space varies."""

    @property
    def unreleased(self) -> str:
        """Words on a selection that has released nothing yet."""

    def status_line(self) -> str:
        """Return how it stands."""

    def state_of(self, trial: TrialResult) -> str:
        """Return a trial's state."""

    def choose(self) -> Choice:
        """Return the best trial."""


def html_of_study(study: Study) -> str:
    """Return a study as HTML: how it stands, its trials, and what their epsilons cover.

    Guarantees:
        It says what ``dpsweep status`` says, and nothing more; no epsilon stands without its terms.
    """
    title = heading(study.status_line())
    trials = study.results
    if not trials:
        return title + paragraph(study.unreleased or "no trials yet")
    try:
        best = study.choose().best.trial_id
    except NothingWithinBudgetError:
        best = None
    metric = trials[0].metric
    names = ["trial", "state", "method", metric, "epsilon", *study.varied]
    rows: list[Sequence[Any]] = [
        [
            f"{trial.trial_id} (best)" if trial.trial_id == best else trial.trial_id,
            study.state_of(trial),
            trial.config.get("method"),
            trial.value,
            shown_epsilon(trial.epsilon),
            *(trial.config.get(name) for name in study.varied),
        ]
        for trial in trials[:_MOST_ROWS]
    ]
    more = len(trials) - _MOST_ROWS
    left = paragraph(f"and {more} more: .trials() has all") if more > 0 else ""
    return title + table(names, rows) + left + paragraph(study.claims.caption())

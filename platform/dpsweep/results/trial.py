"""Results of one trial, as its user sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.validate import integer
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.results.tables.html import heading, table
from dpsweep.study.trial import TrialState


def trial_number(number: object) -> int:
    """Return the number of a trial, whatever type of whole number it came in.

    Raises:
        BadInputError: It is of another kind.
    """
    return integer(
        "a trial is named by its number", number, "a whole number, as in result.trial(0)"
    )


@dataclass(frozen=True)
class TrialResult:
    """One trial as its user sees it.

    ``value``, ``step``, ``metrics`` and ``model_uri`` are of one model: the one that the trial
    delivers, which is its best checkpoint by ``metric``.

    Attributes:
        trial_id: Trial number within the study.
        state: How it stands.
        config: Hyperparameters, the method included.
        metric: Name of the score.
        value: Best score of the trial, or None.
        step: Steps that the delivered model has run.
        steps_run: Steps that the trial has run.
        num_steps: Steps of the whole plan.
        reason: Why it ended.
        metrics: Scores of the delivered model, on test records only of a finished trial.
        statement: Epsilon of everything ever charged to it, with all that epsilon depends on.
        run_id: Run of the tracking store, or None without tracking.
        model_uri: Model in the tracking store if it was logged, else the best checkpoint's file.
        curve: Reports so far: step, epsilon, metrics.
        study_statement: What the study as a whole may claim, or None (accounting unaccounted).
        seconds: Training and evaluation since its last (re)start; None where nothing tells it, as
            under every claim: it tells of the sizes of batches.
        memory_mb: Peak memory of its process since then in MiB, or None in the same way.
    """

    trial_id: int
    state: TrialState
    config: dict[str, Any]
    metric: str
    value: float | None
    step: int
    steps_run: int
    num_steps: int
    reason: str
    metrics: dict[str, float]
    statement: PrivacyStatement
    run_id: str | None
    model_uri: str | None
    curve: Sequence[dict[str, Any]]
    study_statement: PrivacyStatement | None
    seconds: float | None = None
    memory_mb: float | None = None

    @property
    def epsilon(self) -> float:
        """Epsilon that ``statement`` is about: this trial alone, or a selection's winner."""
        return self.statement.epsilon

    def __repr__(self) -> str:
        claim = self.study_statement
        of_study = "no claim" if claim is None else claim.one_line()
        return (
            f"<trial {self.trial_id}: {self.state.value}, {self.metric}={self.value} at step "
            f"{self.step} of {self.num_steps}\n alone: {self.statement.one_line()}\n the study: "
            f"{of_study}>"
        )

    def _repr_html_(self) -> str:
        claim, alone = self.study_statement, self.statement.one_line()
        cells = {
            "state": self.state.value,
            self.metric: self.value,
            **{name: value for name, value in self.metrics.items() if name != self.metric},
            "step": f"{self.step} of {self.num_steps}",
            "privacy": alone,
            "study": "no claim" if claim is None else claim.one_line(),
            "model": self.model_uri,
            **{f"configuration: {name}": value for name, value in self.config.items()},
        }
        return heading(f"trial {self.trial_id}") + table([], cells.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep best -f json`` prints (a stable interface)."""
        return {
            "config": self.config,
            "metric": self.metric,
            "value": self.value,
            **self.statement.to_record(),
            "metrics": self.metrics,
            "step": self.step,
            "steps_run": self.steps_run,
            "num_steps": self.num_steps,
            "run_id": self.run_id,
            "trial_id": self.trial_id,
            "model_uri": self.model_uri,
            "study": self.study_statement.to_record() if self.study_statement else None,
        }

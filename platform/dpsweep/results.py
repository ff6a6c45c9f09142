"""Results of a study: trials, the best configuration within a budget, the Pareto front."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dpsweep.durable import is_locked, read_log
from dpsweep.errors import NothingWithinBudgetError
from dpsweep.privacy.accountants import AccountantName, PrivacyStatement, epsilon_of, shown_epsilon
from dpsweep.privacy.events import Plan
from dpsweep.privacy.ledger import study_spent, trial_spent
from dpsweep.spec import SweepSpec
from dpsweep.study import StudyFiles, StudyView, TrialView
from dpsweep.tracking.state import read_run_ids
from dpsweep.trial import TrialState


@dataclass(frozen=True)
class TrialResult:
    """One trial as its user sees it.

    Attributes:
        trial_id: Trial number within the study.
        state: How it stands.
        config: Hyperparameters, the method included.
        metric: Name of the score.
        value: Best score of the trial, or None.
        step: Steps run by the model of the last report.
        best_step: Step of the checkpoint that has the score.
        num_steps: Steps of the whole plan.
        reason: Why it ended.
        metrics: Metrics of the last report.
        statement: Epsilon of everything ever charged to it, with all that epsilon depends on.
        run_id: Run of the tracking store, or None without tracking.
        model_uri: Model in the tracking store if it was logged, else the best checkpoint's file.
        curve: Reports so far: step, epsilon, metrics.
    """

    trial_id: int
    state: TrialState
    config: dict[str, Any]
    metric: str
    value: float | None
    step: int
    best_step: int
    num_steps: int
    reason: str
    metrics: dict[str, float]
    statement: PrivacyStatement
    run_id: str | None
    model_uri: str | None
    curve: Sequence[dict[str, Any]]

    @property
    def epsilon(self) -> float:
        """Epsilon of this trial alone; read it with ``statement``."""
        return self.statement.epsilon

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep best -f json`` prints (a stable interface)."""
        statement = self.statement.to_json()
        statement["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else None
        return {
            "config": self.config,
            "metric": self.metric,
            "value": self.value,
            **statement,
            "step": self.best_step,
            "run_id": self.run_id,
            "trial_id": self.trial_id,
            "model_uri": self.model_uri,
        }


class SweepResult:
    """A study read from its directory; reading needs neither Ray nor the tracking store.

    Args:
        files: The study's files.
    """

    def __init__(self, files: StudyFiles) -> None:
        self.files = files
        self.name = files.name
        self.spec = SweepSpec.from_yaml(files.spec)
        self.view: StudyView = files.view()
        self._run_ids = read_run_ids(files.tracking)

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``interrupted`` or ``failed``; a killed run is interrupted."""
        if self.view.state == "running" and not is_locked(self.files.path / "lock"):
            return "interrupted"
        return self.view.state

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, by number."""
        return [self._result(view) for _, view in sorted(self.view.trials.items())]

    def state_of(self, trial: TrialResult) -> str:
        """Return a trial's state; one that no process executes any more is ``interrupted``."""
        if trial.state is TrialState.RUNNING and self.state != "running":
            return "interrupted"
        return trial.state.value

    @property
    def varied(self) -> list[str]:
        """Names of the hyperparameters that the space varies, the method left out."""
        space = self.spec.search.space
        return [name for name, c in space.items() if isinstance(c, Mapping) and name != "method"]

    def epsilon_terms(self) -> dict[str, Any]:
        """Return what must stand beside every epsilon of this study, as columns of a record."""
        privacy = self.spec.privacy
        return {
            "delta": privacy.delta,
            "privacy_unit": self.spec.data.privacy_unit,
            "neighboring_relation": privacy.neighboring_relation,
            "accountant": privacy.accountant,
            "accounting": privacy.accounting,
        }

    def caption(self) -> str:
        """Return what a table of trials must say about its epsilon column."""
        privacy = self.spec.privacy
        spent = self.composed()
        return (
            f"epsilon: one trial alone, delta={privacy.delta:g}, "
            f"unit={self.spec.data.privacy_unit}, {privacy.neighboring_relation}, "
            f"sampling={spent.sampling}, {privacy.accountant}; "
            f"accounting={privacy.accounting}; it covers "
            f"{self._released('one trial; the cost of the search is NOT included')}.\n"
            f"For indication, all trials composed: epsilon={shown_epsilon(spent.epsilon)} at "
            f"delta={spent.delta:g} ({spent.accountant}); no guarantee, no filter was enforced."
        )

    def status_line(self) -> str:
        """Return one line: state, trials by state, seconds from first to last event."""
        counts = {state.value: self.view.count(state) for state in TrialState}
        if self.state != "running":
            counts["interrupted"] = counts.pop("running")
        told = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        seconds = (self.view.last_ms - self.view.first_ms) / 1000
        return (
            f"study {self.name!r}: {self.state}; {told or 'no trials yet'} "
            f"of {self.spec.search.num_trials}; {seconds:.0f} s from first to last event"
        )

    def history(self, trial: int | None = None) -> list[dict[str, Any]]:
        """Return what happened, oldest first: time, event, trial, step, epsilon, detail."""
        rows = []
        for record in read_log(self.files.journal):
            if trial is not None and record.get("trial") != trial:
                continue
            moment = datetime.fromtimestamp(record["time_ms"] / 1000, tz=timezone.utc)
            detail = record.get("reason") or record.get("uri") or ""
            if record["event"] == "trial_report":
                detail = ", ".join(f"{k}={v:.4f}" for k, v in record["metrics"].items())
            rows.append(
                {
                    "time": moment.isoformat(timespec="milliseconds"),
                    "event": record["event"],
                    "trial": record.get("trial"),
                    "step": record.get("step"),
                    "epsilon": record.get("epsilon"),
                    "detail": detail,
                }
            )
        return rows

    def _statement(
        self, spent: Plan, *, accountant: AccountantName, released: str
    ) -> PrivacyStatement:
        privacy = self.spec.privacy
        return PrivacyStatement(
            epsilon=epsilon_of(spent, delta=privacy.delta, accountant=accountant),
            delta=privacy.delta,
            accountant=accountant,
            neighboring_relation=privacy.neighboring_relation,
            sampling=spent.sampling,
            privacy_unit=self.spec.data.privacy_unit,
            accounting=privacy.accounting,
            released=self._released(released),
        )

    def _released(self, what: str) -> str:
        """Say what an epsilon covers; exact scores on private records it never does."""
        if self.spec.data.validation.visibility != "exact":
            return what
        return f"{what}; exact private validation scores and choices by them are not covered"

    def _result(self, view: TrialView) -> TrialResult:
        spent = trial_spent(self.files.ledger, view.trial, at_least=view.charged)
        checkpoint = self.files.trial(view.trial) / "best.json"
        uri = self.view.model_uris.get(view.trial)
        if uri is None and checkpoint.exists():
            uri = checkpoint.as_uri()
        return TrialResult(
            trial_id=view.trial,
            state=view.state,
            config=view.hparams,
            metric=self.spec.search.metric,
            value=view.value,
            step=view.step,
            best_step=view.best_step,
            num_steps=view.num_steps,
            reason=view.reason,
            metrics=view.metrics,
            statement=self._statement(
                spent,
                accountant=self.spec.privacy.accountant,
                released="this trial alone; the cost of the search is not included",
            ),
            run_id=self._run_ids.get(view.trial),
            model_uri=uri,
            curve=view.reports,
        )

    def best(self, *, max_epsilon: float | None = None) -> TrialResult:
        """Return the finished trial with the best score whose epsilon is at most ``max_epsilon``.

        Raises:
            NothingWithinBudgetError: There is none.
        """
        sign = 1.0 if self.spec.search.mode == "max" else -1.0
        results = [self._result(view) for view in self.view.finished()]
        within = [r for r in results if max_epsilon is None or r.epsilon <= max_epsilon]
        if not within:
            because = f"{len(results)} trials have finished"
            if results:
                cheapest = min(results, key=lambda result: result.epsilon)
                because += f"; the cheapest: {cheapest.statement.one_line()}"
            bound = f" with epsilon <= {max_epsilon:g}" if max_epsilon is not None else ""
            raise NothingWithinBudgetError(
                f"study {self.name!r} has no finished trial{bound}",
                because=because,
                fix=("raise --max-epsilon, or " if max_epsilon is not None else "")
                + "let the study go on: `dpsweep run SPEC`",
            )
        return max(within, key=lambda r: (sign * (r.value or 0.0), -r.epsilon, -r.trial_id))

    def composed(self) -> PrivacyStatement:
        """Return the sum over everything any trial ever ran, by RDP at the study's delta.

        Guarantees:
            Under ``unaccounted`` this is an indication, not a guarantee: no filter was enforced.
        """
        return self._statement(
            study_spent(self.files.ledger, self.view.charged()),
            accountant="rdp",
            released="every trial ever run (indication, not a guarantee)",
        )


def default_root() -> Path:
    """Return the folder of studies: ``DPSWEEP_STUDIES``, or ``studies`` in this directory."""
    return Path(os.environ.get("DPSWEEP_STUDIES", "studies"))


def load_sweep(name: str, *, root: str | Path | None = None) -> SweepResult:
    """Open a study by name; it may still be running.

    Args:
        name: The spec's ``name``.
        root: The spec's ``storage.path``; default: ``DPSWEEP_STUDIES`` or ``studies``.
    Raises:
        StudyError: There is no such study.
    """
    return SweepResult(StudyFiles.find(name, Path(root) if root else default_root()))

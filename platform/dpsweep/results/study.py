"""Results of a study: trials, the best configuration within a budget, the Pareto front."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from dpsweep.foundation.durable import is_locked, read_log
from dpsweep.foundation.errors import BadInputError, CheckpointError, NothingWithinBudgetError
from dpsweep.foundation.words import counted
from dpsweep.privacy.statement import PrivacyStatement, shown_epsilon
from dpsweep.results.claims import Claims
from dpsweep.results.trial import TrialResult
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.facts import describe_pretraining
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import StudySpent, TrialJudged, TrialReported, event_of
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.launched import anchored
from dpsweep.study.roots import default_root
from dpsweep.study.trial import TrialState
from dpsweep.tracking.state import read_run_ids
from dpsweep.trainables.execution.checkpoint_files import find


class OpenStudy(Protocol):
    """An open study, and all that is in hand of it."""

    files: StudyFiles
    spec: SweepSpec
    view: StudyView


class SweepResult:
    """A study read from its directory; reading needs neither Ray nor the tracking store.

    Args:
        files: The study's files.
        spec: Its frozen spec, where that is in hand.
        view: Its journal's, where that is in hand.
    """

    def __init__(
        self, files: StudyFiles, *, spec: SweepSpec | None = None, view: StudyView | None = None
    ) -> None:
        self.files = files
        self.name = files.name
        self.spec = spec or SweepSpec.from_yaml(files.spec, is_stored=True)
        self.view: StudyView = view or files.view()
        self.claims = Claims(files, self.spec, self.view)
        self._run_ids = read_run_ids(files.tracking)

    @classmethod
    def of(cls, study: OpenStudy) -> SweepResult:
        """Return the results of a study that is open, as they stand; only ledgers are read."""
        return cls(study.files, spec=anchored(study.spec), view=study.view)

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``interrupted`` or ``failed``; a killed run is interrupted."""
        if self.view.state == "running" and not is_locked(self.files.path / "lock"):
            return "interrupted"
        return self.view.state

    @property
    def is_maximized(self) -> bool:
        """True when a high score is good."""
        return self.spec.search.mode == "max"

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, by number."""
        return [self._result(view) for _, view in sorted(self.view.trials.items())]

    def trial(self, number: int) -> TrialResult:
        """Return one trial."""
        return self._result(self.view.trials[number])

    def state_of(self, trial: TrialResult) -> str:
        """Return a trial's state; one that no process executes any more is ``interrupted``."""
        if trial.state in (TrialState.RUNNING, TrialState.PAUSED) and self.state != "running":
            return "interrupted"
        return trial.state.value

    @property
    def varied(self) -> list[str]:
        """Names of the hyperparameters that the space varies, the method left out."""
        space = self.spec.space
        return [name for name, c in space.items() if isinstance(c, Mapping) and name != "method"]

    def study_statement(self) -> PrivacyStatement | None:
        """Return what may be said of the study as a whole, or None (``Claims.study_statement``)."""
        return self.claims.study_statement()

    def score_notes(self) -> list[str]:
        """Return what must be said beside test scores, one line each; mostly nothing."""
        trials = [
            str(n) for n, view in sorted(self.view.trials.items()) if view.is_tested_elsewhere
        ]
        if not trials:
            return []
        return [
            f"study {self.name!r}: no test score of trial {', '.join(trials)}: an earlier version "
            "of dpsweep took it of the last model, which is not the one that is delivered"
        ]

    def status_line(self) -> str:
        """Return one line: state, trials by state, seconds of all launches without their pauses."""
        counts = {state.value: self.view.count(state) for state in TrialState}
        if self.state != "running":
            counts["interrupted"] = counts.pop("running")
        progress = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        if self.spec.privacy.mode.is_sealed:
            progress = "the winner is released" if self.view.trials else "nothing is released yet"
        elif not self.spec.privacy.mode.is_public_search:
            most = max(self._most_trials, len(self.view.trials))
            progress = f"{progress or 'no trials yet'} of at most {most}"
        seconds = self.view.worked_ms / 1000
        is_new = self.view.end_reason not in ("", progress)
        why = f" ({self.view.end_reason})" if is_new else ""
        took = "" if self.spec.privacy.mode.is_sealed else f"; {seconds:.0f} s"
        if self.state == "running" and self.spec.pretrain and self.view.pretrained is None:
            took += f"; public weights first: {describe_pretraining(self.spec)}"
        return f"study {self.name!r}: {self.state}{why}; {progress}{took}"

    @property
    def unreleased(self) -> str:
        """Words on a study of accounting select that has released nothing yet; else empty."""
        if not self.spec.privacy.mode.is_sealed or self.view.trials:
            return ""
        selection, claim = self.spec.privacy.selection, self.study_statement()
        text = (
            f"its trials are secret, and so is their number, about {selection.mean:g} by the spec; "
            "the best of them is shown once the study has finished"
        )
        if claim is not None:
            text += f", at epsilon={shown_epsilon(claim.epsilon)} ({claim.line()})"
        is_over = self.state not in ("new", "running")
        return text + ("; run the same command again to continue it" if is_over else "")

    @property
    def _most_trials(self) -> int:
        spec = self.spec
        num_runs = spec.start.runs if spec.start is not None else 0
        if spec.episodes is None and spec.search.sampler != "grid":
            return num_runs + spec.search.num_trials
        in_grid = len(SearchSpace.from_spec(spec.space).grid())
        if spec.episodes is not None:
            return in_grid
        return num_runs + min(in_grid, spec.search.num_trials)

    def history(self, trial: int | None = None) -> list[dict[str, Any]]:
        """Return what happened, oldest first: time, event, trial, step, epsilon, detail."""
        rows = []
        for record in read_log(self.files.journal):
            if trial is not None and record.get("trial") != trial:
                continue
            moment = datetime.fromtimestamp(record["time_ms"] / 1000, tz=timezone.utc)
            detail = record.get("reason") or record.get("uri") or ""
            if record["event"] == StudySpent.kind:
                continue
            if record["event"] == TrialReported.kind:
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

    def _result(self, view: TrialView) -> TrialResult:
        checkpoint = self.files.trial(view.trial) / "best.json"
        uri = self.view.model_uris.get(view.trial)
        if uri is None and checkpoint.exists():
            uri = checkpoint.as_uri()
        claims, metric = self.claims, self.spec.search.metric
        statement = claims.trial_statement(view)
        # Of an earlier version's journal the value may be all that is known of this model.
        metrics = dict(view.delivered)
        if view.value is not None:
            metrics[metric] = view.value
        # The claim of a public search is its final run's own, not that of its other trials.
        is_shared = not claims.mode.is_public_search or claims.is_final(view)
        return TrialResult(
            trial_id=view.trial,
            state=view.state,
            config=view.hparams,
            metric=metric,
            value=view.value,
            step=view.delivered_step,
            steps_run=view.step,
            num_steps=view.num_steps,
            reason=view.reason,
            metrics=metrics,
            statement=statement,
            run_id=self._run_ids.get(view.trial),
            model_uri=uri,
            curve=view.reports,
            study_statement=claims.study_statement() if is_shared else None,
        )

    def best(self, *, max_epsilon: float | None = None) -> TrialResult:
        """Return the finished trial with the best score whose epsilon is at most ``max_epsilon``.

        Of a public search that is the final private run, the only one that was chosen. Of episodes
        it is the first one of the configuration with the best mean over those that it has finished:
        the best trial would be the easiest episode.

        Raises:
            NothingWithinBudgetError: There is none.
        """
        is_public = self.spec.privacy.mode.is_public_search
        results = [
            self._result(view)
            for view in self.view.finished()
            if not is_public or self.claims.is_final(view)
        ]
        within = [r for r in results if max_epsilon is None or r.epsilon <= max_epsilon]
        if not within:
            noun = "final run" if is_public else "trial"
            has = "has" if len(results) == 1 else "have"
            because = f"{counted(len(results), noun)} {has} finished"
            if results:
                cheapest = min(results, key=lambda result: result.epsilon)
                because += (
                    f"; the cheapest is trial {cheapest.trial_id}: "
                    f"epsilon={shown_epsilon(cheapest.epsilon)} ({cheapest.statement.line()})"
                )
            unscored = [t.trial for t in self.view.trials.values() if t.is_unscored]
            if unscored:
                place = self.files.trial(unscored[0])
                because += (
                    f"; trained, but without a score to be ranked by: {_listed(unscored)} (the "
                    f"model of each is kept, as in {place}/last.json)"
                )
            bound = f" with epsilon <= {max_epsilon:g}" if max_epsilon is not None else ""
            raise NothingWithinBudgetError(
                f"study {self.name!r} has no finished trial{bound}",
                because=because,
                fix=("raise --max-epsilon, or " if max_epsilon is not None else "")
                + (
                    "`dpsweep logs` has the reasons; a new study may allow more trials or epsilon"
                    if self.state == "finished"
                    else "let the study go on: `dpsweep run SPEC`"
                ),
            )
        sign = 1.0 if self.is_maximized else -1.0
        if self.spec.episodes is not None:
            return max(_by_configuration(within), key=lambda c: (len(c), sign * _mean(c)))[0]
        return max(within, key=lambda r: (sign * (r.value or 0.0), -r.epsilon, -r.trial_id))

    def pareto(self) -> list[TrialResult]:
        """Return the finished trials that no other one beats in score at the same or less epsilon.

        Cheapest first. Trials that were stopped are left out: what one has spent when its own score
        stops it is no bound on its epsilon.

        Raises:
            BadInputError: They are of different episodes.
        """
        if self.spec.episodes is not None:
            raise BadInputError(
                f"trials of study {self.name!r} ran on different episodes, and do not compare",
                fix=f"`dpsweep report {self.name}` compares means; --by makes rows",
            )
        sign = 1.0 if self.is_maximized else -1.0
        results = sorted(
            (self._result(view) for view in self.view.finished()),
            key=lambda r: (r.epsilon, -sign * (r.value or 0.0), r.trial_id),
        )
        front: list[TrialResult] = []
        for result in results:
            if not front or sign * (result.value or 0.0) > sign * (front[-1].value or 0.0):
                front.append(result)
        return front

    def model_damage(self, trial: TrialResult) -> str:
        """Say what is wrong with the files of a trial's best model; empty if nothing is."""
        try:
            find(self.files.trial(trial.trial_id), "best")
        except CheckpointError as error:
            return error.message
        return ""

    def decisions(self) -> list[dict[str, Any]]:
        """Return why the scheduler stopped, paused or continued each trial, oldest first.

        Beside the number of a rung, from 1, stands its epsilon, or its share of the trial's own.
        """
        keys = ("trial", "step", "epsilon", "rung", "value", "cutoff", "verdict", "reason")
        read = map(event_of, read_log(self.files.journal))
        judged = [event.to_json() for event in read if isinstance(event, TrialJudged)]
        rungs, unit = self.spec.rungs, f"rung_{self.spec.scheduler.rung_unit}"
        rows = []
        for record in judged:
            number = record["rung"]
            at = rungs[number - 1] if number and number <= len(rungs) else None
            row = {key: record[key] for key in keys[:4]} | {unit: at}
            rows.append(row | {key: record[key] for key in keys[4:]})
        return rows


def _by_configuration(trials: Sequence[TrialResult]) -> list[list[TrialResult]]:
    """Return trials that differ in their episode alone side by side, all in their order."""
    groups: dict[str, list[TrialResult]] = {}
    for trial in trials:
        rest = {name: value for name, value in trial.config.items() if name != EPISODE}
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append(trial)
    return list(groups.values())


def _listed(trials: Sequence[int]) -> str:
    more = f" and {len(trials) - 10} more" if len(trials) > 10 else ""
    return "trial " + ", ".join(map(str, trials[:10])) + more


def _mean(trials: Sequence[TrialResult]) -> float:
    return fmean(trial.value or 0.0 for trial in trials)


def load_sweep(name: str, *, root: str | Path | None = None) -> SweepResult:
    """Open a study by name; it may still be running.

    Args:
        name: The spec's ``name``.
        root: The spec's ``storage.path``; default: ``DPSWEEP_STUDIES`` or ``studies``.
    Raises:
        StudyError: There is no such study.
    """
    return SweepResult(StudyFiles.find(name, Path(root) if root else default_root()))

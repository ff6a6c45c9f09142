"""Results of a study: trials, the best configuration within a budget, the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath, file_path
from dpsweep.foundation.registry import did_you_mean
from dpsweep.foundation.validate import of_kind
from dpsweep.foundation.words import listed, numbers
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.results.choosing import By, Choice, Limits, choose, nothing_within, unbeaten
from dpsweep.results.claims import Claims
from dpsweep.results.progress import final_failed, no_winner, status_line, unreleased
from dpsweep.results.records import LocalRecords, Records, looked_at
from dpsweep.results.tables.notebook import html_of_study
from dpsweep.results.tables.rows import frame_of
from dpsweep.results.tracked.study import find_stored, is_stored
from dpsweep.results.trial import TrialResult, trial_number
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import StudySpent, TrialEnded, TrialJudged, TrialReported, event_of
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.launched import anchored
from dpsweep.study.roots import default_root
from dpsweep.study.trial import MOVING, TrialState, TrialTask

if TYPE_CHECKING:
    from pandas import DataFrame


class OpenStudy(Protocol):
    """An open study, and all that is in hand of it."""

    files: StudyFiles
    spec: SweepSpec
    view: StudyView


class SweepResult:
    """A study as it stands, read from its directory or from the runs of a tracking store.

    Reading a directory needs neither Ray nor the tracking store.

    Args:
        records: The study's files, or other records of it.
        spec: Its frozen spec, where that is in hand.
        view: Its journal's, where that is in hand.
    """

    def __init__(
        self,
        records: StudyFiles | Records,
        *,
        spec: SweepSpec | None = None,
        view: StudyView | None = None,
    ) -> None:
        self._records: Records = (
            LocalRecords(records) if isinstance(records, StudyFiles) else records
        )
        self.name = self._records.name
        self.spec = spec or self._records.spec()
        self.view, self._is_run = looked_at(self._records, view)
        self.claims: Claims = self._records.claims(self.spec, self.view)
        self._run_ids = self._records.run_ids()

    @classmethod
    def of(cls, study: OpenStudy) -> SweepResult:
        """Return the results of a study that is open, as they stand; only ledgers are read."""
        return cls(study.files, spec=anchored(study.spec), view=study.view)

    @property
    def files(self) -> StudyFiles:
        """The study's files; StudyError of a study that was read from a tracking store."""
        return self._records.files

    @property
    def source(self) -> str:
        """Words on where the study was read, if not in its own files; else empty."""
        return self._records.source

    @property
    def incomplete(self) -> Sequence[int]:
        """Numbers of ended trials whose configurations a tracking store may not have whole."""
        return self._records.incomplete

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``interrupted`` or ``failed``; a killed run is interrupted.

        It is how the study stood when it was opened, as are steps and scores. Epsilons of trials
        are those of the ledgers now, which only grow; ``history`` and ``decisions`` those of the
        journal now.
        A tracking store does not know of a run that was killed: there it is ``running``.
        """
        if self.view.state == "running" and not self._is_run:
            return "interrupted"
        return self.view.state

    @property
    def is_maximized(self) -> bool:
        """True when a high score is good."""
        return self.spec.search.mode == "max"

    @property
    def results(self) -> list[TrialResult]:
        """All trials, by number."""
        return [self._result(view) for _, view in sorted(self.view.trials.items())]

    def trials(self) -> DataFrame:
        """Return all trials as a pandas DataFrame, a row each (``results.tables.rows``)."""
        return frame_of(self)

    def trial(self, number: int) -> TrialResult:
        """Return one trial.

        Raises:
            BadInputError: There is none of that number, or it is not released; or it is none.
        """
        number = trial_number(number)
        self.refuse_unknown(number)
        return self._result(self.view.trials[number])

    def refuse_unknown(self, number: int) -> None:
        """Raise BadInputError, which names the trials there are, if none has that number."""
        if number not in self.view.trials:
            message = f"study {self.name!r} has no trial {number}"
            raise BadInputError(message, fix=f"trials: {numbers(self.view.trials) or 'none'}")

    def task(self, number: int) -> TrialTask:
        """Return a trial as it was admitted: every hyperparameter, and its privacy plan.

        Raises:
            StudyError: It is not on record, or damaged.
            BadInputError: ``number`` is none.
        """
        return self._records.task(trial_number(number))

    def __repr__(self) -> str:
        claim = self.study_statement()
        return f"<{self.status_line()}{f'; {claim.one_line()}' if claim else ''}>"

    def _repr_html_(self) -> str:
        return html_of_study(self)

    def state_of(self, trial: TrialResult) -> str:
        """Return a trial's state; one that no process executes any more is ``interrupted``."""
        if trial.state in MOVING and self.state != "running":
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
        return status_line(self.name, self.spec, self.view, self.state)

    @property
    def unreleased(self) -> str:
        """Words on a study of accounting select that has nothing to show; else empty."""
        return unreleased(self.spec, self.view, self.state, self.study_statement())

    def history(self, trial: int | None = None) -> list[dict[str, Any]]:
        """Return what happened, oldest first: time, event, trial, step, epsilon, detail."""
        rows = []
        for record in self._records.journal():
            if record["event"] == StudySpent.kind or trial not in (None, record.get("trial")):
                continue
            moment = datetime.fromtimestamp(record["time_ms"] / 1000, tz=UTC)
            is_scored = record["event"] in (TrialReported.kind, TrialEnded.kind)
            metrics = record["metrics"] if is_scored else {}
            scores = ", ".join(f"{key}={value:.4f}" for key, value in metrics.items())
            words = (record.get("reason") or record.get("uri") or "", scores)
            rows.append(
                {
                    "time": moment.isoformat(timespec="milliseconds"),
                    "event": record["event"],
                    "trial": record.get("trial"),
                    "step": record.get("step"),
                    "epsilon": record.get("epsilon"),
                    "detail": "; ".join(filter(None, words)),
                }
            )
        return rows

    def _result(self, view: TrialView) -> TrialResult:
        uri = self._records.model_uri(view.trial, self.view.model_uris.get(view.trial))
        claims, metric = self.claims, self.spec.search.metric
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
            steps_run=max(view.step, view.kept_step),
            num_steps=view.num_steps,
            reason=view.reason,
            metrics=metrics,
            statement=claims.trial_statement(view),
            run_id=self._run_ids.get(view.trial),
            model_uri=uri,
            curve=view.reports,
            study_statement=claims.study_statement() if is_shared else None,
            **view.usage,
        )

    def best(
        self,
        *,
        max_epsilon: float | None = None,
        max_delta: float | None = None,
        method: str | None = None,
        by: By = "trial",
    ) -> TrialResult:
        """Return the finished trial with the best score within limits (``choose``)."""
        return self.choose(Limits(max_epsilon, max_delta, method), by=by).best

    def choose(self, limits: Limits | None = None, *, by: By = "trial") -> Choice:
        """Return the finished trial with the best score within limits, and what it ties with.

        Of a public search, of strategy ``probe`` and of ``search.on`` that is the final run, the
        only one that is meant to be used, whatever the others have scored. Of episodes it is the
        first one of the configuration with the best mean over those that it has finished: the best
        trial would be the easiest episode. By ``mean`` repetitions (``train.repeat``) are averaged
        alike, so that a lucky seed decides nothing (``results.choosing``).

        Raises:
            NothingWithinBudgetError: There is none.
            BadInputError: The study has no such method; a limit is no number, ``by`` no such word.
        """
        fix = "best and register_model take max_epsilon, max_delta and method themselves"
        of_kind("a choice is within Limits", limits, (Limits, type(None)), fix)
        limits = limits or Limits()
        has_final = self.spec.has_final_run
        views = self.view.finished()
        results = [self._result(v) for v in views if not has_final or self.claims.is_final(v)]
        self._check_method(limits.method)
        choice = choose(
            [result for result in results if limits.admit(result)],
            is_maximized=self.is_maximized,
            by=by,
            has_episodes=self.spec.episodes is not None,
            stopped=lambda: [t for t in self.results if t.state is TrialState.PRUNED],
        )
        if choice is not None:
            return choice
        raise nothing_within(
            limits,
            results,
            study=self.name,
            noun="final run" if has_final else "trial",
            delta=self.spec.privacy.delta,
            unscored=self._unscored(),
            failure=self._failure(limits.method),
            is_over=self.state == "finished",
            ended_without=no_winner(self.spec, self.view, self.state, self.study_statement()),
        )

    def _check_method(self, method: str | None) -> None:
        names = [str(name) for name in SearchSpace.from_spec(self.spec.space).values()["method"]]
        if method is not None and method not in names:
            raise BadInputError(
                f"study {self.name!r} has no method {method!r}",
                fix=did_you_mean(method, names) or f"its methods: {', '.join(names)}",
            )

    def _failure(self, method: str | None) -> str:
        """Return why a trial failed, the final run or else the first one; empty of none.

        Where trials are secret nothing is said of them, but of the final run on all records.
        """
        if self.spec.privacy.mode.is_sealed and self.spec.subset_rate is None:
            return ""
        failed = [
            view
            for view in self.view.trials.values()
            if view.state is TrialState.FAILED and method in (None, view.hparams.get("method"))
        ]
        if not failed:
            return ""
        first = min(failed, key=lambda view: (not self.claims.is_final(view), view.trial))
        if self.spec.has_final_run and self.claims.is_final(first):
            return final_failed(first)
        return f"trial {first.trial} failed: {first.reason.partition(chr(10))[0]}"

    def _unscored(self) -> str:
        """Return which trials ended without a score, and where their models are; mostly empty."""
        trials = [trial.trial for trial in self.view.trials.values() if trial.is_unscored]
        if not trials or self.source:
            return _listed(trials) if trials else ""
        place = self.files.trial(trials[0])
        return f"{_listed(trials)} (the model of each is kept, as in {place}/last.json)"

    def pareto(self) -> list[TrialResult]:
        """Return the finished trials that no other one beats in score at the same or less epsilon.

        Epsilons that are shown alike are the same. Cheapest first. Trials that were stopped are
        left out: what one has spent when its own score stops it is no bound on its epsilon. So is
        the final run after a search on a part of the records: it is on others.

        Raises:
            BadInputError: They are of different episodes.
        """
        if self.spec.episodes is not None:
            raise BadInputError(
                f"trials of study {self.name!r} ran on different episodes, and do not compare",
                fix=f"`dpsweep report {self.name}` compares means; --by makes rows",
            )
        views = [view for view in self.view.finished() if view.records != "rest"]
        return unbeaten(
            [self._result(view) for view in views],
            lambda trial: (trial.epsilon, trial.value or 0.0),
            is_maximized=self.is_maximized,
        )

    def model_damage(self, trial: TrialResult) -> str:
        """Say what is wrong with the files of a trial's best model; empty if nothing is."""
        return self._records.model_damage(trial.trial_id)

    def decisions(self) -> list[dict[str, Any]]:
        """Return why the scheduler stopped, paused or continued each trial, oldest first.

        Beside the number of a rung, from 1, stands its epsilon, or its share of the trial's own.
        """
        keys = ("trial", "step", "epsilon", "rung", "value", "cutoff", "verdict", "reason")
        read = map(event_of, self._records.journal())
        judged = [event.to_json() for event in read if isinstance(event, TrialJudged)]
        rungs, unit = self.spec.rungs, f"rung_{self.spec.scheduler.rung_unit}"
        rows = []
        for record in judged:
            number = record["rung"]
            at = rungs[number - 1] if number and number <= len(rungs) else None
            row = {key: record[key] for key in keys[:4]} | {unit: at}
            rows.append(row | {key: record[key] for key in keys[4:]})
        return rows


def _listed(trials: Sequence[int]) -> str:
    return "trial " + listed([str(trial) for trial in trials], 10)


def load_sweep(
    name: str, *, root: str | FilePath | None = None, tracking_uri: str | None = None
) -> SweepResult:
    """Open a study by name; it may still be running.

    ``mlflow:EXPERIMENT/NAME`` opens it from its runs in a tracking store alone, on a machine that
    never saw it. What is claimed is then what tags of the store say, which whoever may write there
    can change: the authority is the study's ledger (``SweepResult.source``).

    Args:
        name: The spec's ``name``, or ``mlflow:EXPERIMENT/NAME``.
        root: The spec's ``storage.path``; default: ``DPSWEEP_STUDIES`` or ``studies``.
        tracking_uri: Of the tracking store; default: ``MLFLOW_TRACKING_URI`` or
            ``sqlite:///mlflow.db``.
    Raises:
        StudyError: There is no such study, or several.
        BadInputError: The store cannot be read.
    """
    if is_stored(name):
        return SweepResult(find_stored(name, tracking_uri))
    if tracking_uri is not None:
        raise BadInputError(
            f"{name!r} names a study on this machine, which needs no tracking store",
            fix="mlflow:EXPERIMENT/NAME, or leave the tracking URI out",
        )
    return SweepResult(StudyFiles.find(name, file_path(root) if root else default_root()))

"""A journal folded into views: how a study and its trials stand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsweep.foundation.errors import DamagedStudyError
from dpsweep.study import events
from dpsweep.study.trial import (
    ALL_STARTED,
    MOVING,
    TIME_PASSED,
    Decision,
    TrialReport,
    TrialState,
    is_cut_short,
)


@dataclass
class TrialView:
    """One trial, by the journal.

    ``was_continued``: it was started again since its last report. ``judged``: the last verdict on
    it. ``metrics`` are those of its last report, ``delivered`` those of the model that it delivers
    (``TrialReport.delivered``).
    """

    trial: int
    hparams: dict[str, Any] = field(default_factory=dict)
    state: TrialState = TrialState.RUNNING
    reason: str = ""
    was_continued: bool = False
    judged: events.TrialJudged | None = None
    step: int = 0
    kept_step: int = 0  # of the model that was kept since the last report, if one was
    num_steps: int = 0
    rung: int = 0
    epsilon: float | None = 0.0
    charged: int = 0
    sampling: str = "none"
    records: str = "private"
    package: str = ""  # that brought its method, and the version; empty: dpsweep itself
    value: float | None = None
    best_step: int = 0
    wall_s: float | None = None
    memory_mb: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    delivered: dict[str, float] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def delivered_step(self) -> int:
        """Step of the model that it delivers: the best checkpoint, or the last without a score."""
        return self.step if self.value is None else self.best_step

    @property
    def is_unexplained(self) -> bool:
        """Whether its last verdict is a pause, although it was started again since its report."""
        is_paused = self.judged is not None and self.judged.verdict == Decision.PAUSE.value
        return self.was_continued and is_paused

    @property
    def usage(self) -> dict[str, float | None]:
        """What it took since its last (re)start, where that is told."""
        return {"seconds": self.wall_s, "memory_mb": self.memory_mb}

    @property
    def is_tested_elsewhere(self) -> bool:
        """Whether its test scores are of its last model, which is not the one it delivers.

        Earlier versions scored the last model, whichever was delivered.
        """
        return _tests(self.metrics) and not _tests(self.delivered)

    @property
    def is_cut_short(self) -> bool:
        """Whether it has ended before its plan did, because its model diverged."""
        is_over = self.state is TrialState.FINISHED
        return is_over and is_cut_short(self.reason, self.step, self.num_steps)

    @property
    def is_unscored(self) -> bool:
        """Whether it ran to its end and has no score that it could be ranked by."""
        return self.state is TrialState.FINISHED and self.value is None


def on_test_records(metric: str) -> str:
    """Return the name of a validation score on test records.

    >>> on_test_records("validation/loss")
    'test/loss'
    """
    return f"test/{metric.partition('/')[2]}"


def _tests(metrics: Mapping[str, float]) -> bool:
    return any(name.startswith("test/") for name in metrics)


@dataclass
class StudyView:
    """A study, by its journal.

    ``worked_ms`` is the time from first to last event of each launch, pauses between them left out;
    ``model_uris`` holds the models logged to the tracker, ``pretrained`` the address and SHA-256 of
    the public weights that trials may start from.
    """

    trials: dict[int, TrialView] = field(default_factory=dict)
    state: str = "new"
    first_ms: int = 0
    last_ms: int = 0
    worked_ms: int = 0
    num_infeasible: int = 0
    end_reason: str = ""
    downgraded: str = ""
    spent_share: float = 0.0
    model_uris: dict[int, str] = field(default_factory=dict)
    pretrained: dict[str, str] | None = None

    def count(self, state: TrialState) -> int:
        """Return how many trials are in ``state``."""
        if state is TrialState.INFEASIBLE:
            return self.num_infeasible
        return sum(trial.state is state for trial in self.trials.values())

    @property
    def on_private(self) -> set[int]:
        """Numbers of the trials that read private records."""
        return {number for number, trial in self.trials.items() if trial.records != "public"}

    def charged(self) -> dict[int, int]:
        """Return the number of events each trial is known to have charged."""
        return {number: trial.charged for number, trial in self.trials.items()}

    def ended(self) -> dict[int, str | None]:
        """Return the state of each trial that has ended, and None for the others."""
        return {
            number: None if trial.state in MOVING else trial.state.value
            for number, trial in self.trials.items()
        }

    @property
    def num_ended(self) -> int:
        """How many trials have ended."""
        return sum(trial.state not in MOVING for trial in self.trials.values())

    def goes_on(self, max_time: float | None) -> bool:
        """Say whether a search that has ended starts further trials if more of them are wanted.

        Args:
            max_time: Seconds that its launches may run; None: any number.
        """
        if self.end_reason == TIME_PASSED:
            return max_time is None or self.worked_ms / 1000 < max_time
        return self.end_reason == ALL_STARTED

    def best(self, *, maximize: bool) -> TrialView | None:
        """Return the finished trial with the best score; of equal ones the cheapest, the first."""
        sign = 1.0 if maximize else -1.0

        def rank(trial: TrialView) -> tuple[float, float, int]:
            epsilon = math.inf if trial.epsilon is None else trial.epsilon
            return sign * (trial.value or 0.0), -epsilon, -trial.trial

        return max(self.finished(), key=rank, default=None)

    def finished(self) -> Iterator[TrialView]:
        """Yield the trials that ran to their end and have a score."""
        for trial in self.trials.values():
            if trial.state is TrialState.FINISHED and trial.value is not None:
                yield trial


def fold(records: Iterable[Mapping[str, Any]]) -> StudyView:
    """Return the state of a study from its journal; a repeated report changes nothing.

    Raises:
        DamagedStudyError: A line is none that a version of dpsweep has written.
    """
    view = StudyView()
    for number, record in enumerate(records, start=1):
        try:
            fold_one(view, record)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DamagedStudyError(
                f"journal.jsonl:{number}: no journal of dpsweep has such a line",
                because=f"{type(error).__name__}: {error}",
                fix="restore the file from a backup; it was edited",
            ) from error
    return view


def fold_one(view: StudyView, record: Mapping[str, Any]) -> None:
    """Bring a view up to date with one more line; of a newer version's kinds only the time counts.

    Raises:
        KeyError: A key is missing that every version has written.
    """
    event = events.event_of(record)
    view.first_ms = view.first_ms or record["time_ms"]
    if not isinstance(event, events.StudyStarted) and view.state == "running":
        view.worked_ms += max(record["time_ms"] - view.last_ms, 0)
    view.last_ms = record["time_ms"]
    match event:
        case events.StudyStarted():
            view.state, view.end_reason = "running", ""
        case events.StudyEnded():
            view.state, view.end_reason = event.state, event.end_reason
        case events.ModelLogged():
            view.model_uris[event.trial] = event.uri
        case events.Pretrained():
            view.pretrained = {"address": event.address, "sha256": event.sha256}
        case events.TrialInfeasible():
            view.num_infeasible += 1
        case events.StudySpent():
            view.spent_share = event.share
        case events.StudyDowngraded():
            view.downgraded = view.downgraded or event.reason
        case (
            events.TrialStarted()
            | events.TrialReported()
            | events.TrialCharged()
            | events.TrialPaused()
            | events.TrialJudged()
        ):
            _fold_trial(view.trials.setdefault(event.trial, TrialView(event.trial)), event)


def _fold_trial(
    trial: TrialView,
    event: events.TrialStarted
    | events.TrialReported
    | events.TrialCharged
    | events.TrialPaused
    | events.TrialJudged,
) -> None:
    match event:
        case events.TrialStarted():
            trial.hparams = dict(event.hparams)
            trial.num_steps = event.plan["steps"]
            trial.sampling = event.tags["dp.sampling"]
            trial.records = event.tags.get("dp.records", "private")
            trial.package = event.tags.get("dpsweep.package", "")
            trial.state, trial.was_continued = TrialState.RUNNING, True
        case events.TrialCharged():
            trial.kept_step, trial.charged = event.step, max(trial.charged, event.charged)
            if trial.epsilon is not None and event.epsilon is not None:
                trial.epsilon = max(trial.epsilon, event.epsilon)
        case events.TrialPaused():
            trial.state, trial.reason = TrialState.PAUSED, event.reason
        case events.TrialJudged():
            trial.judged = event
        case events.TrialReported():
            _fold_report(trial, event)


def _fold_report(trial: TrialView, event: events.TrialReported) -> None:
    trial.was_continued = False
    trial.step, trial.epsilon, trial.rung = event.step, event.epsilon, event.rung
    trial.kept_step = event.step
    trial.value, trial.best_step = event.value, event.best_step or 0
    trial.wall_s, trial.memory_mb = event.wall_s, event.memory_mb
    trial.charged = max(trial.charged, event.charged)
    if event.metrics:
        trial.metrics = dict(event.metrics)
        if not trial.reports or trial.reports[-1]["step"] < trial.step:
            point = {"step": trial.step, "epsilon": trial.epsilon, "metrics": trial.metrics}
            trial.reports.append(point)
    trial.delivered = _delivered(trial, event)
    if isinstance(event, events.TrialEnded):
        trial.state, trial.reason = TrialState(event.state), event.reason


def _delivered(trial: TrialView, event: events.TrialReported) -> dict[str, float]:
    """Return the metrics of the model that a trial delivers, as far as they are known.

    Reports of earlier versions do not say: there it is what was reported at the best step, if the
    best value is among it.
    """
    if event.delivered is not None:
        return dict(event.delivered)
    value, step = event.value, event.best_step
    if value is None:
        return trial.metrics
    points = [*trial.reports, {"step": trial.step, "metrics": event.metrics}]
    best = [p["metrics"] for p in points if p["step"] == step and value in p["metrics"].values()]
    return best[-1] if best else {}


def replay(records: Iterable[Mapping[str, Any]]) -> Iterator[TrialReport]:
    """Yield the reports of a journal in their order, for a policy to be rebuilt from."""
    for record in records:
        event = events.event_of(record)
        if isinstance(event, events.TrialReported):
            yield event.report()

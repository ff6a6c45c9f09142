"""Drafts of runs' updates: by which rules a value of the journal gets into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.study import events
from dpsweep.tracking.labels import downgraded_tags, tells_number_of_trials, why_unreleased
from dpsweep.tracking.schema import (
    BEST_EPSILON,
    BEST_OBJECTIVE,
    BEST_TRIAL,
    EPSILON,
    Kind,
    UnloggableError,
    as_text,
    check_loggable,
    finite,
    missing_statement,
)
from dpsweep.tracking.state import TrackingState, name_of

#: States that a trial ends in, by its own doing or the search's.
ENDED = ("finished", "pruned", "failed", "infeasible")
#: One that would have gone on if the study's budget had not been used up.
OVER_BUDGET = "over budget"
_ROUNDING = 1e-6  # a table and a single evaluation of one epsilon may differ by so much


@dataclass(frozen=True)
class MetricPoint:
    """One value of one metric; ``time_ms`` is the journal's, so that a replay is identical."""

    name: str
    value: float
    time_ms: int
    step: int


@dataclass
class RunUpdate:
    """News of one run.

    ``trial`` is None for the study's own run, ``PRETRAINING`` for that of public pre-training.

    Attributes:
        opens: True when the run must exist and be RUNNING before the rest is applied.
        start_ms: Time at which it (re)opened.
        status: Final status, or None while it is open.
        end_ms: Time of the final status.
        texts: Small text artifacts by file name.
        artifacts: Local files or directories to store.
        note: Its description, or empty: it stays.
        datasets: Records that it is about, as ``StudyStarted`` has them.
    """

    trial: int | None
    opens: bool = False
    start_ms: int = 0
    status: str | None = None
    end_ms: int = 0
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[MetricPoint] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    note: str = ""
    datasets: list[dict[str, Any]] = field(default_factory=list)


class Drafts:
    """The updates that a batch of events makes, by run, while it is read.

    Guarantees:
        A value gets into an update only under a name that ``schema.check_loggable`` lets pass, and
        an epsilon only when its terms stand beside it and it did not go down.

    Args:
        state: Of the tracker; kept up to date.
    """

    def __init__(self, state: TrackingState) -> None:
        self.state = state
        self.updates: dict[int | None, RunUpdate] = {}
        self.refused: list[str] = []

    def relabel(self) -> None:
        """Put a downgrade's label over that of every touched run: the only way out of here."""
        if self.state.downgraded:
            for update in self.updates.values():
                if update.opens or update.tags:
                    update.tags |= downgraded_tags(self.state.downgraded)

    def update_of(self, trial: int | None) -> RunUpdate:
        """Return the update of a run, a new one at its first event."""
        return self.updates.setdefault(trial, RunUpdate(trial))

    def _pass(
        self, values: Mapping[str, Any] | None, kind: Kind, of: str
    ) -> Iterable[tuple[str, Any]]:
        for name, value in (values or {}).items():
            try:
                check_loggable(name, kind)
            except UnloggableError as error:
                self.refused.append(f"{of}: {error.message}")
                continue
            reason = why_unreleased(name, self.state.study_tags) if kind == "metric" else None
            if self.state.is_sealed and tells_number_of_trials(name, of_study=of == "study"):
                reason = "it would tell how many trials a study in select ran"
            if reason:
                self.refused.append(f"{of}: {kind} {name!r} is not logged: {reason}")
            else:
                yield name, value

    def texts(self, values: Mapping[str, Any] | None, kind: Kind, of: str) -> dict[str, str]:
        """Return values that may pass, as text; what may not is refused in the name of a run."""
        passed = self._pass(values, kind, of)
        return {name: as_text(value) for name, value in passed if value is not None}

    def open(self, update: RunUpdate, event: events.Event) -> None:
        """Have a run exist and be running from an event on."""
        update.opens, update.status = True, None
        update.start_ms = update.start_ms or event.time_ms

    def log_epsilon(
        self, trial: int, event: events.TrialReported | events.TrialPaused | events.TrialCharged
    ) -> None:
        """Log the epsilon of a trial, if its terms stand beside it and it did not go down."""
        missing = self.state.unstated[trial]
        previous = self.state.last.get(str(trial), {}).get(EPSILON, [0, 0.0])[1]
        value = finite(event.epsilon)
        if value is None:
            self.update_of(trial).tags["dp.epsilon"] = "inf"
        elif missing:
            self.refused.append(
                f"trial {trial}: epsilon is not logged without {', '.join(missing)} beside it"
            )
        elif value < previous * (1 - _ROUNDING):
            self.refused.append(
                f"trial {trial}: epsilon went down from {previous:.6g} to {value:.6g} at step "
                f"{event.step}; spent privacy never does, so the value is not logged"
            )
        else:
            self.log_metrics(trial, event, {EPSILON: max(value, previous)}, event.step)

    def log_metrics(
        self, trial: int | None, event: events.Event, metrics: Mapping[str, Any], step: int
    ) -> None:
        """Log metrics of a run that may pass, at a step; None is the study's own run."""
        of = name_of(trial)
        last = self.state.last.setdefault("study" if trial is None else str(trial), {})
        update = self.update_of(trial)
        for name, raw in self._pass(metrics, "metric", of):
            value = finite(raw)
            if value is None:
                update.tags.setdefault("dpsweep.nonfinite", f"{name} at step {step}")
            elif last.get(name) != [step, value]:  # a trial's end repeats its last report
                update.metrics.append(MetricPoint(name, value, event.time_ms, step))
                last[name] = [step, value]

    def log_counts(self, event: events.Event, names: Sequence[str]) -> None:
        """Log how many trials are in the states named, unless that is secret."""
        if self.state.is_sealed:
            return
        values = list(self.state.states.values())
        counts = {count_name(name): values.count(name) for name in names}
        self.log_metrics(None, event, counts, self.num_ended())

    def log_study(
        self, event: events.Event, metrics: Mapping[str, Any], tags: Mapping[str, Any]
    ) -> None:
        """Log metrics of the study, an epsilon only with its statement beside it."""
        tags = {"dp.sampling": self.state.sampling, **self.state.study_tags, **tags}
        missing = missing_statement(tags)
        epsilons = [name for name in metrics if name.endswith("epsilon")]
        if epsilons and not missing:
            self.update_of(None).tags["dp.sampling"] = tags["dp.sampling"]
        unstated = epsilons if missing else []
        self.refused += [
            f"study: {name} is not logged without {', '.join(missing)} beside it"
            for name in unstated
        ]
        stated = {name: value for name, value in metrics.items() if name not in unstated}
        self.log_metrics(None, event, stated, self.num_ended())

    def note_final_run(self, final_run: Sequence[str]) -> None:
        """Note at a launch which run is delivered; what an earlier version called best is not.

        An earlier version did not note which run that is. It is the last one of all, so that the
        best trial stays the best until another one is last.

        Args:
            final_run: Its tag, and the tag's value; empty where any trial may be.
        """
        state = self.state
        state.final_run = list(final_run)
        last = max(state.states, default=None)
        if state.final_run and state.best_trial not in (state.final_trial, last):
            state.best = state.best_trial = None

    def note_start(self, trial: int, tags: Mapping[str, str]) -> None:
        """Note whether a trial that begins is the one that is delivered, by its own tags."""
        final_run = self.state.final_run
        if final_run and tags.get(final_run[0]) == final_run[1]:
            self.state.final_trial = trial
            if self.state.best_trial != trial:
                self.state.best = self.state.best_trial = None

    def log_best(self, event: events.TrialEnded) -> None:
        """Log a finished trial on the study's run, if it is the best so far of what may be.

        Where one run is delivered, whatever the trials before it have scored, that is this one.
        """
        state = self.state
        value, best = finite(event.value), state.best
        sign = {"max": 1.0, "min": -1.0}.get(state.mode)
        if value is None or sign is None or (state.final_run and event.trial != state.final_trial):
            return
        if best is None or sign * value > sign * best:
            state.best, state.best_trial = value, event.trial
            metrics: dict[str, Any] = {BEST_OBJECTIVE: value}
            if not state.is_sealed:
                metrics[BEST_TRIAL] = event.trial
            if event.epsilon and not state.unstated.get(event.trial, ["not started"]):
                metrics[BEST_EPSILON] = event.epsilon
            self.log_study(event, metrics, {})

    def num_ended(self) -> int:
        """Return how many trials have ended."""
        return sum(state in (*ENDED, OVER_BUDGET) for state in self.state.states.values())


def count_name(state: str) -> str:
    """Return the metric that counts trials in a state.

    >>> count_name("over budget")
    'search/over_budget'
    """
    return f"search/{state.replace(' ', '_')}"

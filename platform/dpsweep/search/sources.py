"""Where a stage's trials come from: a search that admits what fits, or a fixed list of tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dpsweep.foundation.errors import (
    BadInputError,
    InfeasibleBudgetError,
    StudyError,
    SweepError,
)
from dpsweep.ledgers.study import StudyLedger
from dpsweep.search.known import KnownTrial, Outcome, objective_values
from dpsweep.search.suggestions import Suggestions
from dpsweep.search_spaces.base import MAX_INFEASIBLE_IN_A_ROW
from dpsweep.study.events import TrialInfeasible, event_of
from dpsweep.study.journal import StudyView
from dpsweep.study.trial import ALL_STARTED, TIME_PASSED, TrialReport, TrialState, TrialTask

MAX_UNAFFORDABLE_IN_A_ROW = 20
_UNAFFORDABLE = "its plan does not fit into what is left of the study's budget"

#: A task, and what was drawn for it.
_Suggested = tuple[TrialTask, Mapping[str, Any]]

#: How a trial that has ended is told to the sampler.
OUTCOMES: Mapping[TrialState, Outcome] = {
    TrialState.FINISHED: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAILED: "failed",
}


class TaskSource(Protocol):
    """Hands out admitted tasks, one at a time, and is told how their trials do."""

    @property
    def is_exhausted(self) -> bool:
        """True when there will be no further task."""

    def next_task(self, *, num_running: int) -> TrialTask | None:
        """Return a task whose cost is reserved and whose files are written, or None to wait."""

    def on_report(self, report: TrialReport) -> None:
        """A trial has reported."""

    def on_end(self, report: TrialReport, state: TrialState) -> None:
        """A trial has ended."""


class TaskList:
    """Tasks that were admitted before, in order: a final run, or trials to repeat."""

    def __init__(self, tasks: Sequence[TrialTask]) -> None:
        self._tasks = list(tasks)

    @property
    def is_exhausted(self) -> bool:
        """True when all were handed out."""
        return not self._tasks

    def next_task(self, *, num_running: int) -> TrialTask | None:
        """Return the next task."""
        return self._tasks.pop(0) if self._tasks else None

    def on_report(self, report: TrialReport) -> None:
        """Nothing to learn."""

    def on_end(self, report: TrialReport, state: TrialState) -> None:
        """Nothing to learn."""


class SearchSource:
    """A search: what an earlier process left, then what the sampler suggests, while it fits.

    A suggestion becomes a plan, and the study's ledger reserves the plan's cost before the trial
    can start. One that does not fit waits for the trials in flight, whose pruning gives budget
    back; when none is left it is given up for a cheaper one, and when several in a row do not fit
    the study's budget is used up. One that was given up is refused, as one without a plan is, once
    a later one is admitted or a grid has no more: the last ones before the end are no gaps. Until
    then it runs in Optuna's study, and a launch after a killed one asks for it again.

    Args:
        suggestions: The Optuna study.
        plan: Makes a task of a configuration; raises BadInputError if it cannot run.
        ledger: The study's ledger.
        admit: Called with a task whose cost is reserved: writes its files and its journal entry.
        refuse: Called with number, values and error of a configuration that gets no trial.
        num_refused: Returns how many were refused by now, in all launches.
        unfinished: Tasks to continue.
        num_admitted: Trials admitted so far.
        num_trials: Trials that will be admitted in all.
        deadline: Time, by ``clock``, after which none is started, or None.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        suggestions: Suggestions,
        *,
        plan: Callable[[int, Mapping[str, Any]], TrialTask],
        ledger: StudyLedger,
        admit: Callable[[TrialTask], None],
        refuse: Callable[[int, Mapping[str, Any], SweepError], None],
        num_refused: Callable[[], int],
        unfinished: Sequence[TrialTask],
        num_admitted: int,
        num_trials: int,
        deadline: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._suggestions, self._plan, self._ledger = suggestions, plan, ledger
        self._admit, self._refuse, self._num_refused = admit, refuse, num_refused
        self._waiting = list(unfinished)
        self._num_admitted, self._num_trials = num_admitted, num_trials
        self._deadline, self._clock = deadline, clock
        self._pending: _Suggested | None = None
        self._unaffordable: list[_Suggested] = []
        self._end_reason = ""

    @property
    def end_reason(self) -> str:
        """Why no further trial will be started; "" as long as one may be."""
        if self._waiting:
            return ""
        if not self._end_reason and self._num_admitted >= self._num_trials:
            return ALL_STARTED
        return self._end_reason

    @property
    def is_exhausted(self) -> bool:
        """True when no further trial will be started."""
        return bool(self.end_reason)

    def next_task(self, *, num_running: int) -> TrialTask | None:
        """Return the next task that fits, or None to wait for the running trials or for good."""
        if self._waiting:
            return self._waiting.pop(0)
        while not self.is_exhausted:
            suggested = self._pending or self._suggest()
            self._pending = None
            if suggested is None:
                break
            task, _ = suggested
            if task.reserve(self._ledger):
                self._num_admitted += 1
                self._refuse_gaps()
                self._admit(task)
                return task
            if num_running:
                self._pending = suggested
                return None
            self._unaffordable.append(suggested)
            if len(self._unaffordable) == MAX_UNAFFORDABLE_IN_A_ROW:
                for given_up, _ in self._unaffordable:
                    self._suggestions.refuse(given_up.trial, _UNAFFORDABLE)
                self._end_reason = "the study's budget is used up: no further trial fits into it"
        return None

    def _refuse_gaps(self) -> None:
        """Tell of configurations that were given up, and leave gaps in the numbers of trials."""
        for task, values in self._unaffordable:
            self._give_up(task.trial, values, InfeasibleBudgetError(_UNAFFORDABLE))
        self._unaffordable.clear()

    def _give_up(self, number: int, values: Mapping[str, Any], error: BadInputError) -> None:
        """Write that a configuration gets no trial, and then tell Optuna, which asks no more."""
        self._refuse(number, values, error)
        self._suggestions.refuse(number, error.message)

    def _suggest(self) -> _Suggested | None:
        """Return the next feasible suggestion; None, and the search is over, if there is none."""
        for _ in range(MAX_INFEASIBLE_IN_A_ROW):
            if self._deadline is not None and self._clock() >= self._deadline:
                self._refuse_gaps()
                self._end_reason = TIME_PASSED
                return None
            suggestion = self._suggestions.ask()
            if suggestion is None:
                self._refuse_gaps()
                self._end_reason = "every point of the grid was tried"
                if num_refused := self._num_refused():
                    self._end_reason += f" but {num_refused}, which did not fit into the budget"
                return None
            number, values = suggestion
            try:
                return self._plan(number, values), values
            except StudyError:
                self._suggestions.tell(number, "failed")
                raise
            except BadInputError as error:
                self._give_up(number, values, error)
        raise SweepError(
            f"{MAX_INFEASIBLE_IN_A_ROW} suggestions in a row were infeasible",
            fix="`dpsweep plan` shows the infeasible share of the space; narrow it, or raise "
            "privacy.trial_epsilon, in a new study under another name",
        )

    def on_report(self, report: TrialReport) -> None:
        """Store the score of a report."""
        value = report.metrics.get(self._suggestions.objectives[0])
        if value is not None:
            self._suggestions.report(report.trial, report.step, value)

    def on_end(self, report: TrialReport, state: TrialState) -> None:
        """Tell Optuna: complete with its objectives, pruned, or failed."""
        values = objective_values(
            self._suggestions.objectives, epsilon=report.epsilon, value=report.value
        )
        self._suggestions.tell(report.trial, OUTCOMES[state], values, epsilon=report.epsilon)


def known_trials(
    view: StudyView, records: Iterable[Mapping[str, Any]], objectives: Sequence[str], *, first: int
) -> dict[int, KnownTrial]:
    """Return what the journal says of every trial that a search has suggested.

    Args:
        view: The state of the study.
        records: Its journal.
        objectives: In their order; of scores the first one is reported.
        first: Number of the first trial of the search.
    """
    trials = {
        event.trial: KnownTrial(event.hparams, "failed", reason=_first_line(event.reason))
        for event in map(event_of, records)
        if isinstance(event, TrialInfeasible)
    }
    for number, trial in view.trials.items():
        if number >= first:
            epsilon = math.inf if trial.epsilon is None else trial.epsilon
            trials[number] = KnownTrial(
                trial.hparams,
                OUTCOMES.get(trial.state),
                objective_values(objectives, epsilon=epsilon, value=trial.value),
                {
                    point["step"]: point["metrics"][objectives[0]]
                    for point in trial.reports
                    if objectives[0] in point["metrics"]
                },
                epsilon=trial.epsilon,
            )
    return trials


def _first_line(reason: str) -> str:
    return (reason or "infeasible").splitlines()[0]

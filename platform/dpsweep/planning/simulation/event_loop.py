"""One policy's sweep under a simulated clock, event by event."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.preflight import Preflight
from dpsweep.planning.simulation.account import Account
from dpsweep.planning.simulation.final_run import FinalRuns
from dpsweep.planning.simulation.policy_run import num_rungs
from dpsweep.planning.simulation.probes import PlannedProbes
from dpsweep.planning.simulation.trials import Planned, Planner
from dpsweep.privacy.events import Plan
from dpsweep.schedulers.base import BarrierPolicy, TrialPolicy
from dpsweep.search.probes import ProbeSource
from dpsweep.search.sources import SearchSource
from dpsweep.search.suggestions import Suggestions
from dpsweep.study.trial import Decision, TrialReport, TrialState, TrialTask

#: Called now and then with the policy, the trials that ended, and a guess of the share done.
Progress = Callable[[str, int, float], None]

_PROGRESS_EVERY_S = 1.0


@dataclass
class _Live:
    """A trial that runs or is paused.

    Attributes:
        planned: Its configuration.
        reports: Indices of the reports that the policy sees.
        next: How many of them were made.
        best: Best score so far.
        best_step: Where it was.
    """

    planned: Planned
    reports: NDArray[np.int64]
    next: int = 0
    best: float | None = None
    best_step: int = 0


class Simulation:
    """One policy's sweep, event by event.

    Args:
        checked: Spec with the policy's scheduler.
        planner: Plans configurations.
        policy: The policy.
        account: Who holds how much of the study's budget.
        planned: Where ``account`` looks configurations up.
        num_trials: Trials that may be admitted.
        slots: Trials at once.
        release_epsilon: Epsilon of so many noisy scores.
        final_runs: Plans the run of the winner after a search on other records; None: there is no
            such run.
        progress: Told now and then how far it is.
    """

    def __init__(
        self,
        checked: Preflight,
        planner: Planner,
        policy: TrialPolicy,
        account: Account,
        planned: dict[int, Planned],
        *,
        num_trials: int,
        slots: int,
        release_epsilon: Callable[[int], float],
        final_runs: FinalRuns | None,
        progress: Progress,
    ) -> None:
        spec = checked.spec
        self._spec, self._policy, self._account = spec, policy, account
        self._planner, self._planned, self._progress = planner, planned, progress
        self._num_trials, self._slots = num_trials, slots
        self._release_epsilon, self._final_runs = release_epsilon, final_runs
        self._drawn: dict[int, Mapping[str, Any]] = {}  # of trials that have not ended
        self._winning: Mapping[str, Any] = {}
        self._next_number = 0
        self._sign = 1.0 if spec.search.mode == "max" else -1.0
        self._has_rungs = num_rungs(spec) > 0
        self._source = self._probes(checked) if spec.final_trial else self._search(checked)
        self._now, self._num_events = 0.0, 0
        self._events: list[tuple[float, int, int]] = []
        self._running: dict[int, _Live] = {}
        self._paused: dict[int, _Live] = {}
        self._refused: set[int] = set()  # paused trials that did not fit since the last settling
        self._counts = {"started": 0, "finished": 0, "stopped": 0, "infeasible": 0, "steps": 0}
        self._winner: tuple[float, float] | None = None
        self._best_full: float | None = None
        self._samplings: set[str] = set()
        self._said = time.monotonic()

    def _search(self, checked: Preflight) -> SearchSource:
        return SearchSource(
            Suggestions(self._spec, checked.space, path=None),
            plan=self._plan,
            ledger=cast(Any, self._account),
            admit=self._admit,
            refuse=self._refuse,
            num_refused=lambda: self._counts["infeasible"],
            unfinished=[],
            num_admitted=0,
            num_trials=self._num_trials,
            deadline=self._spec.search.max_time,
            clock=lambda: self._now,
        )

    def _probes(self, checked: Preflight) -> ProbeSource:
        return ProbeSource(
            PlannedProbes(Probing(checked), self._planner, self._planned),
            spares=self._spec.search.probe.spares,
            maximize=self._sign > 0,
            ledger=cast(Any, self._account),
            admit=self._admit,
            tell=lambda run: None,
        )

    def run(self) -> dict[str, Any]:
        """Run until no trial is left; return fields of a ``PolicyRun``."""
        while True:
            self._fill()
            if not self._events:
                break
            self._now, _, trial = heapq.heappop(self._events)
            self._report(trial)
            self._say()
        self._counts["stopped"] += len(self._paused)
        if self._final_runs is not None and self._winner is not None:
            self._deliver(self._final_runs)
        best, full = (None, None) if self._winner is None else self._winner
        return {
            **self._counts,
            "hours": self._now / 3600,
            "best": best,
            "full_score": full,
            "best_full": self._best_full,
            "end_reason": self._source.end_reason,
            "sampling": ", ".join(sorted(self._samplings)) or "none",
        }

    def _deliver(self, final_runs: FinalRuns) -> None:
        """Run the configuration that won once more, to its end: it is what the study delivers."""
        task, planned = final_runs.plan(self._next_number, self._winning)
        self._account.deliver(task)
        steps = int(planned.positions[-1])
        self._counts["started"] += 1
        self._counts["finished"] += 1
        self._counts["steps"] += steps
        self._now += steps * planned.step_s
        self._samplings = {*self._samplings, planned.sampling} - {"none"}
        full = float(planned.exact[-1])
        self._best_full = self._better(self._best_full, full)
        seen = planned.seen[planned.on_grid]
        self._winner = (float(seen.max() if self._sign > 0 else seen.min()), full)

    def _say(self) -> None:
        if time.monotonic() - self._said >= _PROGRESS_EVERY_S:
            self._said = time.monotonic()
            ended = self._counts["finished"] + self._counts["stopped"]
            share = max(ended / self._num_trials, self._account.share)
            self._progress(self._spec.scheduler.type, ended, share)

    def _fill(self) -> None:
        """Let trials run as long as slots are free: paused ones first, then new ones."""
        while len(self._running) < self._slots:
            if self._resume(self._policy.choose_paused):
                continue
            if self._source.next_task(num_running=len(self._running)):
                continue
            if self._source.is_exhausted and self._resume(self._at_barrier):
                continue
            spends_rest = self._account.has_budget and self._source.is_exhausted
            if not spends_rest or not self._resume(self._policy.choose_last):
                return

    def _at_barrier(self, paused: Collection[int]) -> int | None:
        if not isinstance(self._policy, BarrierPolicy):
            return None
        return self._policy.choose_at_barrier(paused, self._running)

    def _resume(self, choose: Callable[[Collection[int]], int | None]) -> bool:
        """Let a paused trial go on: the best one whose cost fits, as in a sweep."""
        waiting = self._paused.keys() - self._refused if self._refused else self._paused.keys()
        while waiting:
            trial = choose(waiting)
            if trial is None:
                return False
            if self._account.reserve(trial, Plan(()), epsilon=0.0):
                self._running[trial] = self._paused.pop(trial)
                self._schedule(trial)
                return True
            self._refused.add(trial)
            waiting = self._paused.keys() - self._refused
        return False

    def _plan(self, number: int, values: Mapping[str, Any]) -> TrialTask:
        planned = self._planner.plan(number, values)
        if self._final_runs is not None:
            if refusal := self._final_runs.refusal(number, values):
                raise InfeasibleBudgetError(refusal)
            self._drawn[number] = values
        self._planned[number] = planned
        return planned.task

    def _refuse(self, number: int, values: Mapping[str, Any], error: Exception) -> None:
        self._counts["infeasible"] += 1

    def _admit(self, task: TrialTask) -> None:
        planned = self._planned[task.trial]
        every = np.arange(len(planned.positions))
        reports = every if self._has_rungs else np.flatnonzero(planned.on_grid)
        self._running[task.trial] = _Live(planned, reports)
        self._counts["started"] += 1
        self._next_number = max(self._next_number, task.trial + 1)
        self._samplings.add(planned.sampling)
        self._best_full = self._better(self._best_full, float(planned.exact[-1]))
        self._schedule(task.trial)

    def _better(self, known: float | None, score: float) -> float:
        return score if known is None or self._sign * score > self._sign * known else known

    def _schedule(self, trial: int) -> None:
        live = self._running[trial]
        planned = live.planned
        before = planned.positions[live.reports[live.next - 1]] if live.next else 0
        steps = int(planned.positions[live.reports[live.next]] - before)
        self._num_events += 1
        due = self._now + steps * planned.step_s
        heapq.heappush(self._events, (due, self._num_events, trial))

    def _report(self, trial: int) -> None:
        live = self._running[trial]
        planned, index = live.planned, int(live.reports[live.next])
        before = int(live.reports[live.next - 1]) if live.next else None
        last_position = 0 if before is None else int(planned.positions[before])
        self._counts["steps"] += int(planned.positions[index]) - last_position
        self._account.charge(planned, index, before)
        live.next += 1
        score = float(planned.seen[index])
        if live.best is None or self._sign * score > self._sign * live.best:
            live.best, live.best_step = score, int(planned.positions[index])
        report = self._report_of(trial, live, index)
        self._source.on_report(report)
        decision = self._policy.on_report(report).decision
        if report.done or decision is Decision.STOP:
            self._refused.clear()
            self._end(trial, report)
        elif decision is Decision.PAUSE:
            self._refused.clear()
            self._account.settle(trial, planned, index, live.next)
            self._paused[trial] = self._running.pop(trial)
        else:
            self._schedule(trial)

    def _report_of(self, trial: int, live: _Live, index: int) -> TrialReport:
        planned = live.planned
        done = live.next == len(live.reports)
        following = None if done else int(live.reports[live.next])
        position = int(planned.positions[index])

        def epsilon(at: int, releases: int) -> float:
            return max(float(planned.epsilons[at]), self._release_epsilon(releases))

        return TrialReport(
            trial=trial,
            step=position,
            metrics={self._spec.search.metric: float(planned.seen[index])},
            epsilon=epsilon(index, live.next),
            next_epsilon=None if following is None else epsilon(following, live.next + 1),
            rung=int(planned.rungs[index]) if self._has_rungs else 0,
            skipped=planned.skipped,
            done=done,
            reason="plan complete" if done else "",
            charged=position,
            value=live.best,
            best_step=live.best_step,
        )

    def _end(self, trial: int, report: TrialReport) -> None:
        live = self._running.pop(trial)
        planned, index = live.planned, int(live.reports[live.next - 1])
        self._account.settle(trial, planned, index, live.next)
        state = TrialState.FINISHED if report.done else TrialState.PRUNED
        self._counts["finished" if report.done else "stopped"] += 1
        self._source.on_end(report, state)
        del self._planned[trial]
        drawn = self._drawn.pop(trial, {})
        is_meant = self._spec.final_trial in (None, trial)
        if report.done and live.best is not None and is_meant:
            is_best = self._winner is None or (
                self._sign * live.best > self._sign * self._winner[0]
            )
            if is_best:
                self._winner = (live.best, float(planned.exact[-1]))
                self._winning = drawn

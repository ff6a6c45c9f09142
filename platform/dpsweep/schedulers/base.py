"""The interface of a trial policy, and what policies with rungs share."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from dpsweep.study.trial import Decision, TrialReport, Verdict

if TYPE_CHECKING:
    from dpsweep.spec.study import SchedulerSpec

#: The verdict on a report at no new rung.
NOT_JUDGED = Verdict(Decision.CONTINUE)


class TrialPolicy(Protocol):
    """Decides from reports alone; sees neither Ray, nor a clock, nor global randomness.

    A policy is rebuilt on resume by replaying the reports of the journal, so it keeps no state
    that reports do not determine. A repeated report (same trial, same step) gets the verdict it
    got before, and is counted once.
    """

    @classmethod
    def from_spec(cls, scheduler: SchedulerSpec, *, metric: str, maximize: bool) -> Self:
        """Return the policy that a spec describes.

        Args:
            scheduler: The spec's section.
            metric: Name of the score that trials are compared by.
            maximize: Whether a high score is good.
        """
        ...

    def on_report(self, report: TrialReport) -> Verdict:
        """Say what happens to the trial that reported, and why."""
        ...

    def choose_paused(self, paused: Collection[int]) -> int | None:
        """Return which of the paused trials goes on next, or None: none of them, so far.

        Asking changes nothing. Whoever lets the trial go on leaves it out from then on. A set is
        read faster than a list.
        """
        ...

    def choose_last(self, paused: Collection[int]) -> int | None:
        """Return which paused trial is worth the rest of a budget that buys no new trial."""
        ...

    def standing(self, paused: int) -> Verdict:
        """Say how a paused trial stands now: CONTINUE if it may go on, STOP if not, and why."""
        ...


@runtime_checkable
class BarrierPolicy(Protocol):
    """What a policy has besides that lets paused trials go on when all of them have come so far."""

    def choose_at_barrier(self, paused: Collection[int], running: Collection[int]) -> int | None:
        """Return which paused trial goes on next, or None; asked once no new trial will start.

        Asking changes nothing.

        Args:
            paused: Trials that wait and could go on now.
            running: All that run or are about to, trials that were promoted among them.
        """
        ...


def promotion(policy: TrialPolicy, paused: int) -> Verdict:
    """Return the verdict that lets a paused trial go on, as it stands now or nevertheless."""
    verdict = policy.standing(paused)
    if verdict.decision is Decision.CONTINUE:
        return verdict
    reason = f"{verdict.reason}; but it is the best that waits, and budget is left"
    return dataclasses.replace(verdict, decision=Decision.CONTINUE, reason=reason)


class RungPolicy(ABC):
    """A policy that judges each trial once at each rung, among the trials that got there.

    A rung is an amount of epsilon, so trials of any noise, batch size or length are compared at
    equal privacy loss. Here a rung is only a number: a trial reports exactly where it reaches one,
    and ``TrialReport.rung`` says how many it has reached. A trial that passes two rungs at once (a
    crash has made it spend more) is judged at the upper one alone. One whose first step passes a
    rung (``TrialReport.skipped``) is judged there neither itself nor by others: a model of one step
    says nothing of its configuration.

    Scores that are not finite are the worst there are. A trial that has no score at a rung is not
    judged there. The last report of a trial is recorded, and stops nothing. Memory is bounded by
    trials times rungs.

    Args:
        metric: Name of the score.
        maximize: Whether a high score is good.
        num_rungs: Number of rungs, for messages; 0 if not known.
    """

    def __init__(self, *, metric: str, maximize: bool, num_rungs: int = 0) -> None:
        self.metric, self.maximize, self.num_rungs = metric, maximize, num_rungs
        # Per rung (loss, trial) of all that were judged there, best first: of equal scores the
        # lower trial number. The loss is the score, negated if high is good: low is always good.
        self._ranking: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._reached: dict[int, int] = {}
        self._verdicts: dict[tuple[int, int], Verdict] = {}

    def on_report(self, report: TrialReport) -> Verdict:
        """Judge the trial if it has reached another rung; see ``TrialPolicy``."""
        if report.rung <= self._reached.get(report.trial, 0):
            return self._verdicts.get((report.trial, report.step), NOT_JUDGED)
        self._reached[report.trial] = report.rung
        if report.rung <= report.skipped:
            where = self._name(report.rung)
            reason = f"not judged at {where}: the first step of the trial passes it"
            verdict = Verdict(Decision.CONTINUE, report.rung, reason=reason)
        else:
            verdict = self._verdict(report)
        self._verdicts[report.trial, report.step] = verdict
        return verdict

    def _verdict(self, report: TrialReport) -> Verdict:
        score = report.metrics.get(self.metric)
        if score is None:
            reason = f"not judged: no {self.metric} was released at {self._name(report.rung)}"
            return Verdict(Decision.CONTINUE, reason=reason)
        entry = (self._loss(score), report.trial)
        insort(self._ranking[report.rung], entry)
        if not report.done:
            return self._judge(report.rung, entry)
        reason = f"{self._text(entry[0])} at {self._name(report.rung)}, where the trial has ended"
        return Verdict(Decision.CONTINUE, report.rung, self._score(entry[0]), reason=reason)

    @abstractmethod
    def _judge(self, rung: int, entry: tuple[float, int]) -> Verdict:
        """Say what happens to a trial that stands in the ranking of ``rung`` by now."""

    def _against(self, rung: int, loss: float, cutoff: float, described: str) -> Verdict:
        """Stop a trial whose loss at ``rung`` is above the cut-off, and say why or why not."""
        where = f"{self._text(loss)} at {self._name(rung)}"
        if loss > cutoff:
            decision, reason = Decision.STOP, f"{where} is {self._worse} {described}"
        else:
            decision, reason = Decision.CONTINUE, f"{where} reaches {described}"
        return Verdict(decision, rung, self._score(loss), self._score(cutoff), reason)

    def choose_paused(self, paused: Collection[int]) -> int | None:
        """Choose none: this policy does not pause."""
        return None

    def choose_last(self, paused: Collection[int]) -> int | None:
        """Choose none: this policy does not pause."""
        return None

    def standing(self, paused: int) -> Verdict:
        """Continue: this policy does not pause."""
        return NOT_JUDGED

    def _loss(self, score: float | None) -> float:
        """Return what low values of are good; infinite for a score that is not finite."""
        if score is None or not math.isfinite(score):
            return math.inf
        return -score if self.maximize else score

    def _score(self, loss: float) -> float | None:
        """Return the score of a loss, or None if it is not finite."""
        if not math.isfinite(loss):
            return None
        return -loss if self.maximize else loss

    def _text(self, loss: float) -> str:
        """Return a score as messages show it."""
        score = self._score(loss)
        return "no finite score" if score is None else f"{score:.6g}"

    def _name(self, rung: int) -> str:
        """Return a rung as messages name it."""
        return f"rung {rung} of {self.num_rungs}" if self.num_rungs else f"rung {rung}"

    @property
    def _worse(self) -> str:
        return "below" if self.maximize else "above"

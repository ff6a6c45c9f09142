"""Synchronous successive halving with one rung, at the end of a noisy prefix."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import TYPE_CHECKING, Self

from dpsweep.schedulers.base import NOT_JUDGED, RungPolicy
from dpsweep.study.trial import Decision, TrialReport, Verdict

if TYPE_CHECKING:
    from dpsweep.spec.study import SchedulerSpec


class NoisyPrefix(RungPolicy):
    """Pauses every trial at the end of its noisy prefix, then lets the best ``keep`` go on.

    One round of successive halving (Jamieson and Talwalkar 2016, https://arxiv.org/abs/1502.07943),
    in its synchronous form: nobody goes on before all are there, so that the order of the declared
    classes is fixed (``DeclaredComposition``). The first steps of a trial are at several times the
    noise of the others and cost next to nothing; with a learning rate that follows the noise they
    rank configurations as well. Whoever goes on does so from its checkpoint.

    Who goes on is a function of the scores at the barrier alone: the best ``keep`` of all, equal
    ones by trial number. Scores that are missing or not finite are the worst. Nobody takes the
    place of a trial that fails after it was promoted: its units are spent.

    Args:
        metric: Name of the score.
        maximize: Whether a high score is good.
        keep: How many trials go on, at least 1.
    """

    def __init__(self, *, metric: str, maximize: bool, keep: int = 1) -> None:
        super().__init__(metric=metric, maximize=maximize, num_rungs=1)
        self.keep = keep
        self._entries: dict[int, tuple[float, int]] = {}

    @classmethod
    def from_spec(cls, scheduler: SchedulerSpec, *, metric: str, maximize: bool) -> Self:
        """Return the policy that a spec describes."""
        return cls(metric=metric, maximize=maximize, keep=scheduler.keep)

    def _verdict(self, report: TrialReport) -> Verdict:
        """Pause the trial, with or without a score; see ``RungPolicy``."""
        if report.trial in self._entries:
            return NOT_JUDGED
        entry = (self._loss(report.metrics.get(self.metric)), report.trial)
        where = f"{self._text(entry[0])} {_WHERE}"
        value = self._score(entry[0])
        if report.done:
            return Verdict(Decision.CONTINUE, 1, value, reason=f"{where}, where it has ended")
        self._entries[report.trial] = entry
        insort(self._ranking[1], entry)
        return Verdict(Decision.PAUSE, 1, value, reason=f"{where} waits for all others")

    def _judge(self, rung: int, entry: tuple[float, int]) -> Verdict:
        raise NotImplementedError  # ``_verdict`` needs none

    def choose_at_barrier(self, paused: Collection[int], running: Collection[int]) -> int | None:
        """Return which paused trial is promoted next; see ``BarrierPolicy``."""
        if any(trial not in self._entries for trial in running):
            return None
        best = self._ranking[1][: self.keep]
        return next((trial for _, trial in best if trial in paused), None)

    def standing(self, paused: int) -> Verdict:
        """Say how a paused trial stands now; see ``TrialPolicy``."""
        ranking, entry = self._ranking[1], self._entries[paused]
        place = bisect_left(ranking, entry) + 1
        is_best = place <= self.keep
        decision = Decision.CONTINUE if is_best else Decision.STOP
        outcome = "is promoted" if is_best else "is not promoted"
        goes_on = "goes on" if self.keep == 1 else "go on"
        reason = (
            f"{self._text(entry[0])} {_WHERE} {outcome}: place {place} of {len(ranking)} "
            f"(best {self.keep} {goes_on})"
        )
        cutoff = self._score(ranking[min(self.keep, len(ranking)) - 1][0])
        return Verdict(decision, 1, self._score(entry[0]), cutoff, reason)


_WHERE = "at the end of the noisy prefix"

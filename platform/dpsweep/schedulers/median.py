"""The median rule, at rungs of epsilon."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Self

from dpsweep.foundation.words import counted
from dpsweep.schedulers.base import RungPolicy
from dpsweep.study.trial import Decision, Verdict

if TYPE_CHECKING:
    from dpsweep.spec.study import SchedulerSpec


class MedianPolicy(RungPolicy):
    """Stops a trial that is worse at a rung than the median of the other trials there.

    The median stopping rule (Golovin et al. 2017, "Google Vizier", section 3.2.2), with two
    differences: trials are compared where they have spent the same epsilon, not at the same step,
    and by the score there, not by the mean of their scores so far.

    Args:
        metric: Name of the score.
        maximize: Whether a high score is good.
        num_rungs: Number of rungs, for messages; 0 if not known.
        min_trials: How many others must have a score at the rung before a trial is stopped there.
    """

    def __init__(
        self, *, metric: str, maximize: bool, num_rungs: int = 0, min_trials: int = 5
    ) -> None:
        super().__init__(metric=metric, maximize=maximize, num_rungs=num_rungs)
        self.min_trials = min_trials

    @classmethod
    def from_spec(cls, scheduler: SchedulerSpec, *, metric: str, maximize: bool) -> Self:
        """Return the policy that a spec describes."""
        return cls(
            metric=metric,
            maximize=maximize,
            num_rungs=len(scheduler.rungs or ()),
            min_trials=scheduler.min_trials,
        )

    def _judge(self, rung: int, entry: tuple[float, int]) -> Verdict:
        loss = entry[0]
        num_others = len(self._ranking[rung]) - 1
        if num_others < max(1, self.min_trials):
            where = f"{self._text(loss)} at {self._name(rung)}"
            others = counted(num_others, "other")
            reason = f"{where} is not judged among {others}: {self.min_trials} needed"
            return Verdict(Decision.CONTINUE, rung, self._score(loss), reason=reason)
        median = self._median_without(rung, entry)
        described = f"{self._text(median)}, the median of {counted(num_others, 'other')}"
        return self._against(rung, loss, median, described)

    def _median_without(self, rung: int, entry: tuple[float, int]) -> float:
        """Return the median loss at a rung of all but one; of two middle ones their mean."""
        ranking = self._ranking[rung]
        own, middle = bisect_left(ranking, entry), (len(ranking) - 1) // 2

        def other(place: int) -> float:
            return ranking[place if place < own else place + 1][0]

        if len(ranking) % 2 == 0:  # an odd number of others
            return other(middle)
        return (other(middle - 1) + other(middle)) / 2

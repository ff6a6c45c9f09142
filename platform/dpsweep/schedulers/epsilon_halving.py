"""Asynchronous successive halving with rungs in epsilon."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from dpsweep.schedulers.base import RungPolicy
from dpsweep.study.trial import Decision, TrialReport, Verdict

if TYPE_CHECKING:
    from dpsweep.spec.study import SchedulerSpec


class _Held(NamedTuple):
    """Where a trial was paused."""

    rung: int
    entry: tuple[float, int]
    step: int


class EpsilonHalving(RungPolicy):
    """Lets about one in ``reduction_factor`` of the trials that reach a rung go on from it.

    Asynchronous successive halving (ASHA: Li et al. 2020, "A System for Massively Parallel
    Hyperparameter Tuning", https://arxiv.org/abs/1810.05934), with privacy loss in the place of
    training time: trials are compared where they have spent the same epsilon.

    With n the number of scores at a rung so far, the trial's own included, and eta the
    ``reduction_factor``:

    - ``stop``: a trial is stopped if its score is worse than the k-th best, k = max(1, n // eta).
      The first one at a rung goes on, and so does whoever is the best so far. No trial waits.
    - ``promote``: every trial is paused at every rung. Whenever there is room, the best trial that
      waits at the highest rung goes on, if it is among the n // eta best of its rung; equal scores
      go by trial number. This is the paper's Algorithm 2. From the last rung a promoted trial runs
      to its end.

    Args:
        metric: Name of the score.
        maximize: Whether a high score is good.
        num_rungs: Number of rungs, for messages; 0 if not known.
        reduction_factor: eta, at least 2.
        variant: ``stop`` or ``promote``.
    """

    def __init__(
        self,
        *,
        metric: str,
        maximize: bool,
        num_rungs: int = 0,
        reduction_factor: float = 3,
        variant: Literal["stop", "promote"] = "stop",
    ) -> None:
        super().__init__(metric=metric, maximize=maximize, num_rungs=num_rungs)
        self.reduction_factor, self.variant = reduction_factor, variant
        # Trials that were paused and have not been heard of since, by trial, and by rung in the
        # order of its ranking. Some of them may be running again: only a caller knows.
        self._held: dict[int, _Held] = {}
        self._waiting: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)

    @classmethod
    def from_spec(cls, scheduler: SchedulerSpec, *, metric: str, maximize: bool) -> Self:
        """Return the policy that a spec describes."""
        return cls(
            metric=metric,
            maximize=maximize,
            num_rungs=len(scheduler.rungs or ()),
            reduction_factor=scheduler.reduction_factor,
            variant=scheduler.variant,
        )

    def on_report(self, report: TrialReport) -> Verdict:
        """Judge the trial if it has reached another rung; see ``TrialPolicy``."""
        held = self._held.get(report.trial)
        if held is not None and (report.done or report.step > held.step):
            del self._held[report.trial]
            waiting = self._waiting[held.rung]
            del waiting[bisect_left(waiting, held.entry)]
        verdict = super().on_report(report)
        if verdict.decision is Decision.PAUSE and not report.done:
            self._hold(report, verdict)
        return verdict

    def _hold(self, report: TrialReport, verdict: Verdict) -> None:
        if report.trial not in self._held and verdict.rung is not None:
            entry = (self._loss(verdict.value), report.trial)
            self._held[report.trial] = _Held(verdict.rung, entry, report.step)
            insort(self._waiting[verdict.rung], entry)

    def _judge(self, rung: int, entry: tuple[float, int]) -> Verdict:
        if self.variant == "promote":
            return self._pause(rung, entry)
        ranking, loss = self._ranking[rung], entry[0]
        number = max(1, self._num_best(rung))
        cutoff = ranking[number - 1][0]
        if len(ranking) == 1:
            reason = f"{self._text(loss)} at {self._name(rung)} is the first there"
            return Verdict(Decision.CONTINUE, rung, self._score(loss), reason=reason)
        described = f"the cut-off {self._text(cutoff)} (best {number} of {len(ranking)})"
        return self._against(rung, loss, cutoff, described)

    def _pause(self, rung: int, entry: tuple[float, int]) -> Verdict:
        ranking = self._ranking[rung]
        number = self._num_best(rung)
        cutoff = self._score(ranking[number - 1][0]) if number else None
        reason = (
            f"{self._text(entry[0])} at {self._name(rung)} waits in place "
            f"{bisect_left(ranking, entry) + 1} of {len(ranking)} (best {number} go on)"
        )
        return Verdict(Decision.PAUSE, rung, self._score(entry[0]), cutoff, reason)

    def _num_best(self, rung: int) -> int:
        """Return how many of the trials at a rung may go on from it."""
        return int(len(self._ranking[rung]) // self.reduction_factor)

    def choose_paused(self, paused: Collection[int]) -> int | None:
        """Return the best trial that waits at the highest rung and may go on from there."""
        is_paused = paused if isinstance(paused, Set) else frozenset(paused)
        for rung in sorted(self._waiting, reverse=True):
            ranking = self._ranking[rung]
            number = self._num_best(rung)
            for entry in self._waiting[rung] if number else ():
                if entry > ranking[number - 1]:
                    break
                if entry[1] in is_paused:
                    return entry[1]
        return None

    def choose_last(self, paused: Collection[int]) -> int | None:
        """Return the best trial that waits at the highest rung, whatever its place there."""
        for rung in sorted(self._waiting, reverse=True):
            for entry in self._waiting[rung]:
                if entry[1] in paused:
                    return entry[1]
        return None

    def standing(self, paused: int) -> Verdict:
        """Say how a paused trial stands now; see ``TrialPolicy``."""
        rung, entry, _ = self._held[paused]
        ranking = self._ranking[rung]
        number = self._num_best(rung)
        place = bisect_left(ranking, entry) + 1
        where = f"{self._text(entry[0])} at {self._name(rung)}"
        if place <= number:
            decision, reason = Decision.CONTINUE, f"{where} is to be promoted"
        else:
            decision, reason = Decision.STOP, f"{where} was never promoted"
        reason += f": place {place} of {len(ranking)} (best {number} go on)"
        cutoff = self._score(ranking[number - 1][0]) if number else None
        return Verdict(decision, rung, self._score(entry[0]), cutoff, reason)

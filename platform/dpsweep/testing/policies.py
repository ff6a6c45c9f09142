"""The conformance suite of trial policies: subclass it, and pytest collects its tests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpsweep.schedulers.base import BarrierPolicy
from dpsweep.study.trial import Decision, TrialReport, Verdict

if TYPE_CHECKING:
    from dpsweep.schedulers.base import TrialPolicy


def _at_barrier(policy: TrialPolicy, paused: set[int], running: list[int]) -> int | None:
    return policy.choose_at_barrier(paused, running) if isinstance(policy, BarrierPolicy) else None


class PolicyConformance:
    """The suite of trial policies, whatever they compare trials by.

    Attributes:
        metric: Score that the policy of ``make`` compares trials by; high is good.
    """

    metric: ClassVar[str] = "validation/accuracy"

    def make(self) -> TrialPolicy:
        """Return a fresh policy."""
        raise NotImplementedError

    def _report(self, trial: int, step: int, score: float | None) -> TrialReport:
        """Return a report of a trial of 40 steps that reaches a rung at 10, 20 and 30."""
        metrics = {} if score is None else {self.metric: score}
        return TrialReport(
            trial, step, metrics, 0.1 * step, rung=min(3, step // 10), done=step > 39
        )

    def _play(self, policy: TrialPolicy, seed: int = 0) -> list[tuple[TrialReport, Verdict]]:
        """Run 40 trials, 4 at once in random order; returns every report with its verdict.

        Some scores are missing, some not finite, many are equal.
        """
        rng = np.random.default_rng(seed)
        waiting, running, paused = list(range(40)), list[int](), set[int]()
        steps, log = dict.fromkeys(waiting, 0), list[tuple[TrialReport, Verdict]]()
        while True:
            while len(running) < 4:
                chosen = policy.choose_paused(paused)
                if chosen is not None:
                    paused.remove(chosen)
                    running.append(chosen)
                elif waiting:
                    running.append(waiting.pop(0))
                elif (chosen := _at_barrier(policy, paused, running)) is not None:
                    paused.remove(chosen)
                    running.append(chosen)
                else:
                    break
            if not running:
                return log
            trial = running.pop(int(rng.integers(len(running))))
            steps[trial] += 5
            score = round(float(rng.random()), 1)
            kind = rng.random()
            reported = None if kind < 0.1 else math.nan if kind < 0.2 else score
            report = self._report(trial, steps[trial], reported)
            verdict = policy.on_report(report)
            log.append((report, verdict))
            if report.done or verdict.decision is Decision.STOP:
                continue
            if verdict.decision is Decision.PAUSE:
                paused.add(trial)
            else:
                running.append(trial)

    def test_decisions_replay(self) -> None:
        """A policy rebuilt from the journal decides the same; what it sees twice counts once."""
        first, second = self.make(), self.make()
        log = self._play(first)
        for report, verdict in log:
            assert second.on_report(report) == verdict
            assert second.on_report(report) == verdict
        ends = {report.trial: (report, verdict) for report, verdict in log}
        assert [second.on_report(report) for report, _ in ends.values()] == [
            verdict for _, verdict in ends.values()
        ]
        paused = {t for t, (_, verdict) in ends.items() if verdict.decision is Decision.PAUSE}
        assert {t: first.standing(t) for t in paused} == {t: second.standing(t) for t in paused}
        for step, score in ((10, 0.95), (20, 0.45), (30, 0.05)):
            new = self._report(99, step, score)
            assert first.on_report(new) == second.on_report(new)
            assert first.choose_paused({*paused, 99}) == second.choose_paused({*paused, 99})

    def test_the_best_so_far_goes_on(self) -> None:
        """The best score at a rung so far never stops its trial, nor do scores equal to it."""
        for seed in range(5):
            best: dict[int, float] = {}
            for report, verdict in self._play(self.make(), seed):
                score = report.metrics.get(self.metric, math.nan)
                if verdict.rung is not None and score >= best.get(verdict.rung, -math.inf):
                    best[verdict.rung] = score
                    assert verdict.decision is not Decision.STOP, (report, verdict)

    def test_some_trial_runs_to_its_end(self) -> None:
        """A study ends with a result, whatever is stopped or paused."""
        for seed in range(5):
            assert any(report.done for report, _ in self._play(self.make(), seed))

    def test_trials_are_judged_at_rungs_by_their_released_scores(self) -> None:
        """No score, no verdict; and none between two rungs. At a barrier it waits nevertheless."""
        reached: dict[int, int] = {}
        policy = self.make()
        for report, verdict in self._play(policy):
            is_new = report.rung > reached.get(report.trial, 0)
            reached[report.trial] = report.rung
            if isinstance(policy, BarrierPolicy) and verdict.decision is Decision.PAUSE:
                assert is_new
                assert self.metric in report.metrics or verdict.value is None
            elif not is_new or self.metric not in report.metrics:
                assert (verdict.decision, verdict.rung) == (Decision.CONTINUE, None)
                assert verdict.value is None
            elif verdict.rung is not None:
                assert verdict.rung == report.rung
                score = report.metrics[self.metric]
                assert verdict.value == (score if math.isfinite(score) else None)
                assert verdict.reason

    def test_the_last_report_stops_nothing(self) -> None:
        """A trial that is done has ended by itself, also where it reaches a rung with that."""
        policy = self.make()
        self._play(policy)
        report = TrialReport(99, 40, {self.metric: -1.0}, 4.0, rung=3, done=True)
        assert policy.on_report(report).decision is Decision.CONTINUE

    def test_a_rung_that_a_first_step_passes_judges_nobody(self) -> None:
        """Such a trial goes on, and others are not compared with it; at later rungs it is."""
        policy, other = self.make(), self.make()
        for trial in range(100, 130):
            score = {self.metric: trial / 100}
            first = TrialReport(trial, 1, score, 1.0, rung=1, skipped=1)
            verdict = policy.on_report(first)
            assert (verdict.decision, verdict.value) == (Decision.CONTINUE, None)
            assert verdict.rung is None or "first step" in verdict.reason
            assert policy.on_report(first) == verdict
        assert self._play(policy) == self._play(other)
        later = TrialReport(100, 20, {self.metric: 0.5}, 2.0, rung=2, skipped=1)
        assert policy.on_report(later).decision is not None
        assert policy.on_report(later) == other.on_report(later)

    def test_asking_for_a_paused_trial_changes_nothing(self) -> None:
        """The choice is one of those paused, however often and in whatever order one asks."""
        policy = self.make()
        ends = {report.trial: verdict for report, verdict in self._play(policy)}
        assert policy.choose_paused(()) is None
        paused = [t for t, verdict in ends.items() if verdict.decision is Decision.PAUSE]
        for trial in range(100, 200):
            if policy.on_report(self._report(trial, 10, 0.0)).decision is Decision.PAUSE:
                paused.append(trial)
        while paused:
            chosen = policy.choose_paused(paused)
            assert chosen == policy.choose_paused(paused[::-1]) == policy.choose_paused(set(paused))
            if chosen is None:
                break
            assert policy.standing(chosen).decision is Decision.CONTINUE
            paused.remove(chosen)
        assert {policy.standing(trial).decision for trial in paused} <= {Decision.STOP}

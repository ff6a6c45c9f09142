"""Conformance suites: subclass one per implementation; pytest collects the tests of the subclass.

class TestMyMethod(MethodConformance):
    method = MyMethod
    given = {"train.max_steps": 20}
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.schedulers.base import BarrierPolicy
from dpsweep.spec.space.hyperparameters import public_data, resolve
from dpsweep.study.trial import Decision, TrialReport, Verdict
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies
from dpsweep.trainables.execution.starts import Starts
from dpsweep.trainables.hooks import FromRelease, PublicScores, release_key
from dpsweep.trainables.method import PlanContext, RunContext

if TYPE_CHECKING:
    from dpsweep.schedulers.base import TrialPolicy
    from dpsweep.trainables.method import Method

BUDGET = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
START = Plan((EventRun(PoissonGaussian(2.0, 0.1), 10),))


def tiny_data(
    num_private: int = 400, features: int = 6, seed: int = 0, *, num_public: int = 50
) -> SweepData:
    """Return two separable classes of Gaussian points with every part of a dataset."""
    rng = np.random.default_rng(seed)

    def part(count: int) -> tuple[Any, Any]:
        labels = rng.integers(0, 2, size=count)
        points = rng.normal(size=(count, features)) + 2.0 * (2 * labels[:, None] - 1)
        return points.astype(np.float32), labels.astype(np.int64)

    sizes = {"private": num_private, "public": num_public, "validation": 100, "test": 100}
    info = DatasetInfo(
        name="tiny",
        input_shape=(features,),
        num_classes=2,
        num_private=num_private,
        num_validation=sizes["validation"],
        num_test=sizes["test"],
        num_public=sizes["public"],
        class_names=("0", "1"),
    )
    return SweepData(info, {name: part(size) for name, size in sizes.items()}, "0" * 64)


class MethodConformance:
    """The suite of training methods.

    Attributes:
        method: The class under test.
        given: Hyperparameters of a run of some 20 positions that learns the tiny data.
        start: Of a method that starts from a release: hyperparameters of the run that made it.
            The release that it names is one of random weights, after the events of ``START``.
        start_method: The method of that run.
    """

    method: ClassVar[type[Method]]
    given: ClassVar[Mapping[str, Any]]
    start: ClassVar[Mapping[str, Any]] = {}
    start_method: ClassVar[str] = "dp_sgd"

    def _plan(self, **given: Any) -> tuple[dict[str, Any], Plan]:
        hparams = resolve(self.method.hyperparameters, {**self.given, **given})
        key = release_key(self.method, hparams)
        starts = {} if key is None else {key: START}
        return hparams, self.method.plan(hparams, PlanContext(BUDGET, "rdp", 400, starts=starts))

    def _prepared(self, data: SweepData | None = None) -> tuple[Method, Plan]:
        hparams, plan = self._plan()
        instance, supplies = self.method(), NO_SUPPLIES
        if issubclass(self.method, FromRelease):
            declared = TRAINABLES[self.start_method].hyperparameters
            supplies = Supplies(starts=Starts(resolve(declared, self.start), {}))
        context = RunContext(0, 0, supplies=supplies)
        instance.prepare(data or tiny_data(), hparams, plan, context)
        return instance, plan

    def test_hyperparameters_are_declared_once_with_valid_defaults(self) -> None:
        """Names are unique, every default is valid, and what one refers to is declared."""
        names = [parameter.name for parameter in self.method.hyperparameters]
        assert len(set(names)) == len(names)
        problems = {p.name: p.problem(p.default) for p in self.method.hyperparameters}
        assert not {name: problem for name, problem in problems.items() if problem}
        referred = [p.only_beside.other for p in self.method.hyperparameters if p.only_beside]
        assert set(referred) <= set(names)
        defaults = {p.name: p.default for p in self.method.hyperparameters}
        assert public_data(self.method.hyperparameters, defaults)

    def test_plan_is_private_within_the_budget_and_repeatable(self) -> None:
        """The plan keeps the budget, or says it is not private; asked twice, it is the same."""
        _, plan = self._plan()
        assert len(plan) > 0
        assert plan == self._plan()[1]
        assert plan.is_private is self.method.is_private
        if self.method.is_private:
            before = START if issubclass(self.method, FromRelease) else Plan()
            assert 0 < epsilon_of(before + plan, delta=BUDGET.delta) <= BUDGET.target_epsilon

    def test_plan_survives_its_file(self) -> None:
        """A plan read back from JSON is the same plan."""
        _, plan = self._plan()
        assert Plan.from_json(plan.to_json()) == plan

    def test_learns(self) -> None:
        """The whole plan lifts validation accuracy well above chance."""
        instance, plan = self._prepared()
        instance.run(0, len(plan))
        assert instance.evaluate("validation")["accuracy"] > 0.8

    def test_segments_are_as_good_as_one_run(self) -> None:
        """Positions run in any segmentation, in order; a position out of order is refused."""
        instance, plan = self._prepared()
        middle = len(plan) // 2
        instance.run(0, middle)
        try:
            instance.run(0, 1)
        except ValueError:
            pass
        else:
            raise AssertionError("a position was run twice")
        instance.run(middle, len(plan))

    def test_state_restores_the_model_and_nothing_secret(self) -> None:
        """A restored instance predicts the same and continues at the saved position."""
        instance, plan = self._prepared()
        middle = len(plan) // 2
        instance.run(0, middle)
        state = copy.deepcopy(instance.state_dict())
        expected = instance.evaluate("validation")
        other, _ = self._prepared()
        other.load_state_dict(state)
        assert other.evaluate("validation") == expected
        other.run(middle, len(plan))

    def test_public_scores_have_the_names_that_were_said(self) -> None:
        """Scores of its own that leave the actor are those that the study was told of."""
        if not issubclass(self.method, PublicScores):
            return
        instance, plan = self._prepared()
        assert isinstance(instance, PublicScores)
        for start, stop in ((0, len(plan) // 2), (len(plan) // 2, len(plan))):
            instance.run(start, stop)
            assert set(instance.public_scores()) <= set(self.method.public_metrics())

    def test_an_earlier_state_scores_as_it_did_then(self) -> None:
        """Test scores are of the best checkpoint, which a trial that has run on looks back at."""
        instance, plan = self._prepared()
        scores, states = [], []
        for start, stop in ((0, 1), (1, len(plan) // 2), (len(plan) // 2, len(plan))):
            instance.run(start, stop)
            scores.append(instance.evaluate("test"))
            states.append(copy.deepcopy(instance.state_dict()))
        for number in (0, 2, 1, 2):
            instance.load_state_dict(states[number])
            assert instance.evaluate("test") == scores[number]
        assert len({tuple(sorted(score.items())) for score in scores}) > 1

    def test_training_and_scoring_read_their_own_part_alone(self) -> None:
        """Positions read no validation or test record, and a score no private one: a record then
        pays for training or for scores, never for both.
        """
        data = tiny_data()
        for part in ("validation", "test"):
            data.parts[part][0].fill(np.nan)
        instance, plan = self._prepared(data)
        instance.run(0, len(plan))
        for part in ("validation", "test"):
            data.parts[part][0][:] = tiny_data().parts[part][0]
        before = instance.evaluate("validation")
        data.parts["private"][0].fill(np.nan)
        assert instance.evaluate("validation") == before
        assert before["accuracy"] > 0.8

    def test_accuracy_counts_records(self) -> None:
        """One record changes the number of correct ones by at most 1: noisy scores rely on it."""
        data = tiny_data()
        inputs, labels = data.parts["validation"]
        instance, plan = self._prepared(data)
        instance.run(0, len(plan))
        num_correct = instance.evaluate("validation")["accuracy"] * len(labels)
        assert abs(num_correct - round(num_correct)) < 1e-9
        data.parts["validation"] = (inputs[:-1], labels[:-1])
        fewer = instance.evaluate("validation")["accuracy"] * (len(labels) - 1)
        assert 0 <= round(num_correct) - round(fewer) <= 1

    def test_trains_on_public_records_in_place_of_private_ones(self) -> None:
        """A search on public records runs the same method, and needs no private record.

        Not of one that starts from a private release: no such search has one.
        """
        if issubclass(self.method, FromRelease):
            return
        data = tiny_data(num_public=400)
        data.parts["private"][0].fill(np.nan)
        instance, plan = self._prepared(data.for_public_search(with_test=True))
        instance.run(0, len(plan))
        assert instance.evaluate("validation")["accuracy"] > 0.8

    def test_private_data_are_never_written(self) -> None:
        """A method works on read-only arrays, as actors share them."""
        data = tiny_data()
        for inputs, labels in data.parts.values():
            inputs.setflags(write=False)
            labels.setflags(write=False)
        instance, plan = self._prepared(data)
        instance.run(0, len(plan))


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

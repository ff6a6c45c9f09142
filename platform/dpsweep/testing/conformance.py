"""Conformance suites: subclass one per implementation; pytest collects the tests of the subclass.

class TestMyMethod(MethodConformance):
    method = MyMethod
    given = {"train.max_steps": 20}
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.hyperparameters import resolve
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import Plan
from dpsweep.trial import Decision, TrialReport

if TYPE_CHECKING:
    from dpsweep.schedulers.base import TrialPolicy
    from dpsweep.trainables.data import SweepData
    from dpsweep.trainables.method import Method

BUDGET = PrivacyBudget(target_epsilon=2.0, delta=1e-5)


def tiny_data(num_private: int = 400, features: int = 6, seed: int = 0) -> SweepData:
    """Return two separable classes of Gaussian points with every part of a dataset."""
    from dpsweep.trainables.data import DatasetInfo, SweepData

    rng = np.random.default_rng(seed)

    def part(count: int) -> tuple[Any, Any]:
        labels = rng.integers(0, 2, size=count)
        points = rng.normal(size=(count, features)) + 2.0 * (2 * labels[:, None] - 1)
        return points.astype(np.float32), labels.astype(np.int64)

    sizes = {"private": num_private, "public": 50, "validation": 100, "test": 100}
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
    """What every training method must do.

    Attributes:
        method: The class under test.
        given: Hyperparameters of a run of some 20 positions that learns the tiny data.
    """

    method: ClassVar[type[Method]]
    given: ClassVar[Mapping[str, Any]]

    def _plan(self, **given: Any) -> tuple[dict[str, Any], Plan]:
        from dpsweep.trainables.method import PlanContext

        hparams = resolve(self.method.hyperparameters, {**self.given, **given})
        return hparams, self.method.plan(hparams, PlanContext(BUDGET, "rdp", 400))

    def _prepared(self, data: SweepData | None = None) -> tuple[Method, Plan]:
        from dpsweep.trainables.method import RunContext

        hparams, plan = self._plan()
        instance = self.method()
        instance.prepare(data or tiny_data(), hparams, plan, RunContext(0, 0))
        return instance, plan

    def test_hyperparameters_are_declared_once_with_valid_defaults(self) -> None:
        """Names are unique and every default satisfies its own declaration."""
        names = [parameter.name for parameter in self.method.hyperparameters]
        assert len(set(names)) == len(names)
        problems = {p.name: p.problem(p.default) for p in self.method.hyperparameters}
        assert not {name: problem for name, problem in problems.items() if problem}

    def test_plan_is_private_within_the_budget_and_repeatable(self) -> None:
        """The plan keeps the budget, or says it is not private; asked twice, it is the same."""
        _, plan = self._plan()
        assert len(plan) > 0
        assert plan == self._plan()[1]
        assert plan.is_private is self.method.is_private
        if self.method.is_private:
            assert 0 < epsilon_of(plan, delta=BUDGET.delta) <= BUDGET.target_epsilon

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

    def test_private_data_are_never_written(self) -> None:
        """A method works on read-only arrays, as actors share them."""
        data = tiny_data()
        for inputs, labels in data.parts.values():
            inputs.setflags(write=False)
            labels.setflags(write=False)
        instance, plan = self._prepared(data)
        instance.run(0, len(plan))


class PolicyConformance:
    """What every trial policy must do."""

    def make(self) -> TrialPolicy:
        """Return a fresh policy."""
        raise NotImplementedError

    def _reports(self) -> list[TrialReport]:
        rng = np.random.default_rng(0)
        return [
            TrialReport(trial, step, {"validation/accuracy": float(rng.random())}, 0.1 * step)
            for step in range(1, 6)
            for trial in range(4)
        ]

    def test_decisions_replay(self) -> None:
        """A policy rebuilt from the journal decides the same, and a repeated report too."""
        first = self.make()
        decisions = [first.on_report(report) for report in self._reports()]
        assert set(decisions) <= set(Decision)
        second = self.make()
        assert [second.on_report(report) for report in self._reports()] == decisions
        last = self._reports()[-1]
        assert second.on_report(last) == decisions[-1]

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
import torch

from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.events.plan import CHARGED_PARTS
from dpsweep.spec.space.hyperparameters import public_data, resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies
from dpsweep.trainables.data.tasks import task_of
from dpsweep.trainables.execution.checkpoints import check_readable, read_back
from dpsweep.trainables.execution.starts import Starts
from dpsweep.trainables.gradients.noise import Released, watched_releases
from dpsweep.trainables.hooks import FromRelease, PublicScores, release_key
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.outside import check_declared

if TYPE_CHECKING:
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
        noise_is_seen: False for a method whose noise is not that of ``SecretNoise`` at every
            charged position; then no test looks for it.
    """

    method: ClassVar[type[Method]]
    given: ClassVar[Mapping[str, Any]]
    start: ClassVar[Mapping[str, Any]] = {}
    start_method: ClassVar[str] = "dp_sgd"
    noise_is_seen: ClassVar[bool] = True

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
        check_declared(self.method)
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
        """The whole plan lifts validation accuracy well above chance; no score is of no use."""
        instance, plan = self._prepared()
        instance.run(0, len(plan))
        scores = instance.evaluate("validation")
        assert scores["accuracy"] > 0.8
        unreleased = set(scores) - set(task_of("classification").metric_names(("0", "1")))
        assert not unreleased, f"no study releases {', '.join(sorted(unreleased))}"

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
        check_readable(instance.state_dict(), self.method.__name__)
        state = read_back(instance.state_dict())
        expected = instance.evaluate("validation")
        other, _ = self._prepared()
        other.check_at(plan, 0)
        other.load_state_dict(state)
        other.check_at(plan, middle)
        assert other.evaluate("validation") == expected
        other.run(middle, len(plan))

    def test_every_charged_position_draws_noise(self) -> None:
        """What is charged for releases something with noise, and never none.

        How much noise, and how often, is not seen here: ``dpsweep audit`` looks at that.
        """
        if not self.noise_is_seen:
            return
        instance, plan = self._prepared()
        for position in range(len(plan)):
            seen: list[Released] = []
            with watched_releases(seen.append):
                instance.run(position, position + 1)
            (run,) = plan.slice(position, position + 1).runs
            if run.part in CHARGED_PARTS and run.event.is_private:
                assert seen, f"position {position} releases nothing by SecretNoise"
                assert all(release.scale > 0 for release in seen), f"no noise at {position}"

    def test_the_exported_model_is_the_one_that_is_scored(self) -> None:
        """It is on the CPU, in eval mode and right as often; training goes on as if not asked."""
        instance, plan = self._prepared()
        instance.run(0, len(plan))
        before = copy.deepcopy(instance.state_dict())
        model = instance.export()
        assert isinstance(model, torch.nn.Module)
        assert not any(module.training for module in model.modules())
        assert {tensor.device.type for tensor in model.state_dict().values()} <= {"cpu"}
        inputs, labels = tiny_data().parts["validation"]
        with torch.no_grad():
            right = model(torch.as_tensor(inputs)).argmax(dim=-1).numpy() == labels
        assert abs(right.mean() - instance.evaluate("validation")["accuracy"]) < 1e-6
        after = instance.state_dict()
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)

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

"""Active learning passes the suite of methods, with and without a question to private records."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from dpsweep.testing.conformance import MethodConformance, tiny_data
from dpsweep.trainables.gradients.clipping import noise_bound
from dpsweep.trainables.methods.active_learning import dp_pca, label_choice, nearest_votes
from dpsweep.trainables.methods.active_learning.active_learning import ActiveLearning

GIVEN = {
    "start.epsilon": 1.0,
    "labels.max": 20,
    "select.candidates": 30,
    "select.components": 3,
    "select.clusters": 5,
    "finetune.distill_epochs": 2,
    "finetune.epochs": 20,
    "finetune.lr": 0.05,
    "finetune.replay": 0.0,
}


class TestDiversePublic(MethodConformance):
    method = ActiveLearning
    given: ClassVar[Mapping[str, Any]] = GIVEN
    start: ClassVar[Mapping[str, Any]] = {"model.name": "linear"}

    def test_no_private_record_is_read(self):
        data = tiny_data()
        data.parts["private"][0].fill(np.nan)
        instance, plan = self._prepared(data)
        instance.run(0, len(plan))
        assert instance.evaluate("validation")["accuracy"] > 0.8


class TestNearPrivate(TestDiversePublic):
    noise_is_seen = False  # its counts get theirs from numpy
    given: ClassVar[Mapping[str, Any]] = {**GIVEN, "select.by": "near_private"}

    def test_no_private_record_is_read(self):
        """But by the two positions that are charged, and by these even if a record is broken."""
        data = tiny_data()
        data.parts["private"][0][:3] = np.nan
        instance, plan = self._prepared(data)
        instance.run(0, 2)
        data.parts["private"][0].fill(np.nan)
        instance.run(2, len(plan))
        assert instance.evaluate("validation")["accuracy"] > 0.8

    @pytest.mark.parametrize(("voters", "sensitivity"), [("all", 1), ("top_k", 2)])
    def test_executed_noise_is_the_charged_noise(self, monkeypatch, voters, sensitivity):
        """The scales that reach the two mechanisms are those of the plan times sensitivity."""
        seen = []
        moment, counts = dp_pca.symmetric_noise, nearest_votes.noisy_counts

        def of_moment(size, noise_multiplier, generator):
            noise = moment(size, noise_multiplier, generator)
            seen.append(("pca", noise_multiplier, size, noise))
            return noise

        def of_counts(votes, scale, generator):
            noisy = counts(votes, scale, generator)
            seen.append(("votes", scale, int(votes.sum()), noisy - votes))
            return noisy

        monkeypatch.setattr(label_choice, "symmetric_noise", of_moment)
        monkeypatch.setattr(nearest_votes, "noisy_counts", of_counts)
        given = {**type(self).given, "select.voters": voters}
        monkeypatch.setattr(type(self), "given", given)
        instance, plan = self._prepared(tiny_data())
        instance.run(0, len(plan))
        assert [(name, size) for name, _, size, _ in seen] == [
            ("pca", 6),
            ("votes", 400 if voters == "all" else 30),
        ]
        num_private = tiny_data().info.num_private
        assert seen[0][1] == plan.at(0).noise_multiplier * noise_bound(1.0, num_private)
        assert seen[1][1] == plan.at(1).scale * sensitivity
        noise = seen[1][3].numpy()
        assert stats.kstest(noise, "laplace", args=(0, seen[1][1])).pvalue > 1e-6


class TestLabelsAlone(TestDiversePublic):
    """What the bought labels give without any private model."""

    given: ClassVar[Mapping[str, Any]] = {
        **GIVEN,
        "select.by": "random",
        "finetune.recipe": "labels_only",
        "start.epsilon": None,
    }

    def test_plan_is_private_within_the_budget_and_repeatable(self):
        _, plan = self._plan()
        assert plan.is_private
        assert not plan.part("private")
        assert plan == self._plan()[1]

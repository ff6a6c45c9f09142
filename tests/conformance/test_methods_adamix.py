"""AdaMix, each of its private baselines and its non-private counterpart pass the suite of methods."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from scipy import stats

from dpsweep.testing.conformance import MethodConformance, tiny_data
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.adamix.paragon import AdaMixParagon

GIVEN = {"features.name": "none", "public.lr": 1.0}
PRIVATE = {**GIVEN, "noise.noise_multiplier": None, "train.max_steps": 24}


class TestAdaMix(MethodConformance):
    method = AdaMix
    given: ClassVar[Mapping[str, Any]] = {**PRIVATE, "projection.fraction": 0.5}

    @pytest.mark.parametrize("projection", [True, False])
    def test_executed_noise_is_the_charged_noise(self, monkeypatch, projection):
        """Each position adds noise of exactly the charged multiplier times its clip norm."""
        drawn, clips = [], []
        monkeypatch.setattr(
            AdaMix, "noise_observer", staticmethod(lambda n: drawn.append(n.clone()))
        )
        from dpsweep.trainables.methods.adamix import noisy_gd

        monkeypatch.setattr(noisy_gd, "percentile_clip", lambda *_: clips.append(0.3) or 0.3)
        instance, plan = self._prepared(tiny_data(features=500))
        instance.run(0, len(plan))
        assert len(drawn) == len(clips) == len(plan)
        for position, noise in enumerate(drawn):
            scale = plan.at(position).noise_multiplier * 0.3
            values = noise.numpy().ravel()
            assert values.size == 1000
            assert stats.kstest(values, "norm", args=(0, scale)).pvalue > 1e-6
            assert stats.kstest(values, "norm", args=(0, 1.5 * scale)).pvalue < 1e-6


class TestAdaMixFixedClip(MethodConformance):
    method = AdaMix
    given: ClassVar[Mapping[str, Any]] = {**PRIVATE, "adamix.variant": "ngd", "optim.average": 0.5}


class TestPrivatePublicGd(MethodConformance):
    method = AdaMix
    given: ClassVar[Mapping[str, Any]] = {**PRIVATE, "adamix.variant": "private_public_gd"}


class TestPublicPull(MethodConformance):
    method = AdaMix
    given: ClassVar[Mapping[str, Any]] = {**PRIVATE, "adamix.variant": "public_pull"}


class TestFullyPrivate(MethodConformance):
    method = AdaMix
    given: ClassVar[Mapping[str, Any]] = {**PRIVATE, "adamix.variant": "fully_private"}


class TestAdaMixParagon(MethodConformance):
    method = AdaMixParagon
    given: ClassVar[Mapping[str, Any]] = {"features.name": "none", "train.max_steps": 24}

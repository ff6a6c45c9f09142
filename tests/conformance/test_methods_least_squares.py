"""Both ways of least squares pass the suite of methods."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from dpsweep.testing.conformance import MethodConformance, tiny_data
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.least_squares.least_squares import LeastSquares

GIVEN = {"features.name": "none"}


class TestLeastSquares(MethodConformance):
    method = LeastSquares
    given: ClassVar[Mapping[str, Any]] = GIVEN

    def test_executed_noise_is_the_charged_noise(self, monkeypatch):
        """Each release has noise of exactly the charged multiplier times its sensitivity of 1."""
        drawn = []
        monkeypatch.setattr(
            LeastSquares, "noise_observer", staticmethod(lambda n: drawn.append(n.clone()))
        )
        instance, plan = self._prepared(tiny_data(features=500))
        instance.run(0, len(plan))
        assert [len(noise.flatten()) for noise in drawn] == [2 * 500, 500 * 501 // 2]
        for position, noise in enumerate(drawn):
            sigma, values = plan.at(position).noise_multiplier, noise.numpy().ravel()
            assert stats.kstest(values, "norm", args=(0, sigma)).pvalue > 1e-6
            assert stats.kstest(values, "norm", args=(0, 2 * sigma)).pvalue < 1e-6


class TestFeatureCovariance(MethodConformance):
    method = LeastSquares
    given: ClassVar[Mapping[str, Any]] = {
        **GIVEN,
        "least_squares.variant": "feature_covariance",
        "train.max_steps": 20,
    }

    @pytest.mark.parametrize("clip", [0.3, 1.0])
    def test_executed_noise_is_the_charged_noise(self, monkeypatch, clip):
        """The covariance has the sensitivity 1, and each sum of gradients that of its clip."""
        drawn = []
        monkeypatch.setattr(
            LeastSquares, "noise_observer", staticmethod(lambda n: drawn.append(n.clone()))
        )
        hparams, plan = self._plan(**{"clip.max_grad_norm": clip})
        instance = LeastSquares()
        instance.prepare(tiny_data(features=500), hparams, plan, RunContext(0, 0))
        instance.run(0, len(plan))
        assert [len(noise.flatten()) for noise in drawn] == [500 * 501 // 2, *[2 * 500] * 20]
        sigmas = [plan.at(position).noise_multiplier for position in range(len(plan))]
        first = drawn[0].numpy() / sigmas[0]
        steps = np.concatenate(
            [n.numpy().ravel() / s / clip for n, s in zip(drawn[1:], sigmas[1:])]
        )
        for values in (first, steps):
            assert stats.kstest(values, "norm").pvalue > 1e-6
            assert stats.kstest(values, "norm", args=(0, 1.5)).pvalue < 1e-6

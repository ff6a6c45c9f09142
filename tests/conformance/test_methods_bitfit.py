"""DP-BiTFiT passes the suite of methods, in one phase and in two."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import stats

from dpsweep.testing.conformance import MethodConformance, tiny_data
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.methods.without_privacy import BiTFiTNonPrivate

GIVEN = {"train.max_steps": 24, "batch.expected": 100, "optim.lr": 0.3}
#: 100 of 400 records: the first phase has 12 steps.
TWO_PHASES = {**GIVEN, "bitfit.variant": "two_phase", "bitfit.full_epochs": 3.0}


class TestBiTFiT(MethodConformance):
    method = BiTFiT
    given: ClassVar[Mapping[str, Any]] = {**GIVEN, "clip.rule": "automatic"}


class TestTwoPhases(MethodConformance):
    method = BiTFiT
    given: ClassVar[Mapping[str, Any]] = {**TWO_PHASES, "bitfit.full_lr": 0.2}

    def test_executed_noise_is_the_charged_noise(self, monkeypatch):
        """Of both phases: each step adds the charged multiplier times its clip norm, once."""
        drawn = []
        monkeypatch.setattr(
            BiTFiT, "noise_observer", staticmethod(lambda n: drawn.append(n.clone()))
        )
        instance, plan = self._prepared(tiny_data(features=500))
        instance.run(0, len(plan))
        assert len(drawn) == 2 * len(plan)  # weight and bias
        for position in range(len(plan)):
            noise = np.concatenate([n.numpy().ravel() for n in drawn[2 * position :][:2]])
            sigma = plan.at(position).noise_multiplier  # the clip norm is 1
            assert noise.size == 1002
            assert stats.kstest(noise, "norm", args=(0, sigma)).pvalue > 1e-6
            assert stats.kstest(noise, "norm", args=(0, 2 * sigma)).pvalue < 1e-6


class TestBiTFiTNonPrivate(MethodConformance):
    method = BiTFiTNonPrivate
    given: ClassVar[Mapping[str, Any]] = {**GIVEN, "bitfit.variant": "last_layer"}

"""A noise model of learning curves: accuracy from the signal of a plan and one searched number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.parameter import Parameter

Array = NDArray[np.float64]

#: Accuracy without noise, the signal at which half of it is left above chance, and how fast.
CEILING, HALF_SIGNAL, POWER = 0.84, 49.0, 0.62
#: Decades off the best value at which a factor exp(-1/2) of what is above chance is left.
WIDTH = 2.8
#: Standard deviation of the accuracy of equal runs.
RUN_NOISE = 0.0025
#: Share of the range, in its middle and in the logarithm, in which the best value may lie.
MIDDLE = 1 / 3


@dataclass(frozen=True)
class NoiseCurves:
    """Accuracies of noisy SGD as a formula, for one number that follows the noise (u or s).

    A run of a plan of signal S (``privacy.signal_to_noise``: records moved over noise, all steps
    together), after a share x of its steps, at a value d decades from the best one, has the
    accuracy

        chance + (ceiling - chance) * exp(-(d / w)^2 / 2) / (1 + (h / (S sqrt(x)))^p) + run noise,

    a parabola in log value near its flat top. The best value is the same at each epsilon; it is
    drawn, for each seed, from the middle third of the range (log-uniform). S comes from the plan
    that a run really gets, so a probe of epsilon .05 is far below a run of epsilon 1, and a trial
    whose budget a filter has shrunk is below one that has all of it.

    Constants, all of linear models on Fashion-MNIST (54,000 records, pooled pixels, delta 1e-5),
    and of nothing else:

    - ceiling .84, h 49, p .62: fitted to accuracies at the best value of eight plans (batches of
      512 to 4,096, 158 to 632 steps) at epsilon .05, .2, 1 and 3, which run from .734 to .828; S
      from 925 to 32,000 explains all 32 with a standard deviation of .0013.
    - w 2.8: one random value of four decades lost 6.4 points at epsilon 1 and 5.5 at epsilon 3 (the
      formula: 5.9 if the best one is .2 decade off the middle), half a decade 1 to 2 (1.1).
    - run noise .0025: equal runs were .2 to .3 point apart.
    - validation noise sqrt(a (1 - a) / n) at an accuracy a on n records: no measurement, and the
      most that it can be, since runs that are compared have the same records. It is one draw a run,
      as all its reports are on them too; a declared ``noise_std`` comes anew to each report.

    The order of values is the same at every share of the steps, which favours halving.

    Attributes:
        parameter: The searched range.
        seed: Of the best value and of all noise.
        chance: Accuracy of a guess.
        num_validation: Validation records.
        noise_std: Declared standard deviation of noise on a score.
    """

    parameter: Parameter
    seed: int
    chance: float
    num_validation: int
    noise_std: float = 0.0

    @cached_property
    def best_value(self) -> float:
        """The value at which accuracy is largest, whatever the plan."""
        low, high = math.log(self.parameter.low), math.log(self.parameter.high)
        place = (1 + MIDDLE * self._rng(0, "best value").uniform(-1, 1)) / 2
        return math.exp(low + place * (high - low))

    def accuracy(self, value: float, signal: float) -> float:
        """Return the mean accuracy of runs of this signal at a value.

        >>> parameter = Parameter("optim.noise_scale", "loguniform", 0.05, 500.0)
        >>> curves = NoiseCurves(parameter, seed=0, chance=0.1, num_validation=6000)
        >>> [f"{curves.accuracy(curves.best_value, signal):.2f}" for signal in (925, 8985, 26000)]
        ['0.74', '0.81', '0.83']
        """
        decades = math.log10(value / self.best_value)
        share = math.exp(-((decades / WIDTH) ** 2) / 2)
        share = share / (1 + (HALF_SIGNAL / signal) ** POWER) if signal > 0 else 0.0
        return self.chance + max(CEILING - self.chance, 0.0) * share

    def scores(
        self,
        trial: int,
        values: Mapping[str, Any],
        *,
        fractions: Array,
        epsilons: Array,
        signal: float | None = None,
    ) -> tuple[Array, Array]:
        """Return the scores a trial reports, and the same without observation noise.

        Raises:
            BadInputError: The plan has no signal that a formula could start from.
        """
        signal = checked_signal(signal)
        value = float(values[self.parameter.name])
        run = RUN_NOISE * self._rng(trial, "run noise").standard_normal()
        exact = np.array([self.accuracy(value, signal * math.sqrt(x)) for x in fractions]) + run
        rng = self._rng(trial, "observation noise")
        likely = np.clip(exact, 0.0, 1.0)
        seen = exact + np.sqrt(likely * (1 - likely) / self.num_validation) * rng.standard_normal()
        return seen + self.noise_std * rng.standard_normal(len(exact)), exact

    def _rng(self, trial: int, purpose: str) -> np.random.Generator:
        return np.random.default_rng(public_seed(self.seed, trial, f"noise model {purpose}"))


def checked_signal(signal: float | None) -> float:
    """Return the signal of a plan that has one.

    Raises:
        BadInputError: It has none, or no noise at all.
    """
    if signal is None or not math.isfinite(signal):
        raise BadInputError(
            "the noise model is one of steps with Gaussian noise, and this plan has none",
            fix="use a method whose steps are noisy, such as dp_sgd",
        )
    return signal

"""How the noise multiplier and the clip norm move over the steps of a trial."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.events.plan import PREFIX

Shape = Literal["constant", "linear", "cosine", "exponential", "step"]
SHAPES: tuple[Shape, ...] = ("constant", "linear", "cosine", "exponential", "step")


@dataclass(frozen=True)
class _Schedule:
    """A shape that starts at 1 and ends at ``end_ratio``, whatever the start value.

    With a = 1, b = end_ratio, T steps and t = 0..T-1: constant a; linear a + (b-a) t/(T-1);
    cosine b + (a-b)(1 + cos(pi t/(T-1)))/2; exponential a (b/a)^(t/(T-1)); step: ``plateaus``
    levels of equal length, the ratio between neighbors constant.

    Attributes:
        shape: One of ``SHAPES``.
        end_ratio: Last value divided by the first, > 0. A constant shape takes 1 only.
        plateaus: Number of levels of the step shape, at least 2; the others ignore it.
    Raises:
        BadInputError: A value is out of range.
    """

    shape: str = "constant"
    end_ratio: float = 1.0
    plateaus: int = 3

    def __post_init__(self) -> None:
        validate.one_of("shape", self.shape, SHAPES)
        object.__setattr__(self, "end_ratio", validate.positive("end_ratio", self.end_ratio))
        object.__setattr__(self, "plateaus", validate.whole("plateaus", self.plateaus, low=2))
        if self.shape == "constant" and self.end_ratio != 1.0:
            raise BadInputError(
                f"a constant schedule ends where it starts, got end_ratio={self.end_ratio:g}",
                fix="end_ratio 1, or another shape: " + ", ".join(SHAPES[1:]),
            )

    def factors(self, steps: int) -> NDArray[np.float64]:
        """Return the value at each step divided by the start value.

        Args:
            steps: Number of steps, at least 1.
        Returns:
            float64, shape (steps,); the first is 1, the last ``end_ratio`` (1 if there is a
            single step).
        """
        steps = validate.whole("steps", steps, low=1)
        if steps == 1 or self.shape == "constant":
            return np.ones(steps)
        position = np.arange(steps) / (steps - 1)
        if self.shape == "linear":
            factors = 1.0 + (self.end_ratio - 1.0) * position
        elif self.shape == "cosine":
            factors = self.end_ratio + (1.0 - self.end_ratio) * (1.0 + np.cos(np.pi * position)) / 2
        elif self.shape == "exponential":
            factors = self.end_ratio**position
        else:
            levels = min(self.plateaus, steps)
            level = np.arange(steps) * levels // steps
            factors = self.end_ratio ** (level / (levels - 1))
        # Rounding must not move the two ends: the start value is what calibration returns.
        factors[0], factors[-1] = 1.0, self.end_ratio
        return np.asarray(factors, dtype=np.float64)


@dataclass(frozen=True)
class NoiseSchedule(_Schedule):
    """Noise multiplier per step, up to the start value that calibration finds.

    >>> NoiseSchedule("linear", end_ratio=0.5).factors(3)
    array([1.  , 0.75, 0.5 ])
    >>> len(NoiseSchedule("cosine", end_ratio=0.5).plan(2.0, 0.01, 100))
    100

    A noisy prefix comes before the shape: its steps cost next to nothing, and are enough to compare
    configurations whose learning rates follow the noise.

    >>> plan = NoiseSchedule(prefix_share=0.15, prefix_factor=4.0).plan(2.0, 0.1, 20)
    >>> [(run.phase, run.count, run.event.noise_multiplier) for run in plan.runs]
    [('prefix', 3, 8.0), ('train', 17, 2.0)]

    Guarantees:
        The schedule is fixed by public numbers, so its plan may be accounted as a whole. One
        that reacts to private data would need a filter instead and cannot be stated here.

    Attributes:
        prefix_share: Share of the steps, rounded down, that are the prefix; at least one step is,
            and one is not.
        prefix_factor: Noise multiplier of the prefix divided by the start value of the shape, which
            follows; at least 1, which makes no prefix.
    """

    prefix_share: float = 0.15
    prefix_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        share = validate.in_unit_interval("prefix_share", self.prefix_share)
        object.__setattr__(self, "prefix_share", share)
        factor = validate.at_least("prefix_factor", self.prefix_factor, 1.0)
        object.__setattr__(self, "prefix_factor", factor)

    def num_prefix(self, steps: int) -> int:
        """Return how many of ``steps`` steps are the noisy prefix; of a single step, none."""
        if self.prefix_factor == 1.0 or steps < 2:
            return 0
        return min(max(math.floor(self.prefix_share * steps + 1e-9), 1), steps - 1)

    def factors(self, steps: int) -> NDArray[np.float64]:
        """Return the noise at each step divided by the start value, the prefix included."""
        prefix = self.num_prefix(steps)
        shape = super().factors(steps - prefix)
        return np.concatenate([np.full(prefix, self.prefix_factor), shape]) if prefix else shape

    def plan(self, start: float, sample_rate: float, steps: int) -> Plan:
        """Return the events of ``steps`` noisy gradient sums over Poisson batches.

        Args:
            start: Noise multiplier of the first step after the prefix.
            sample_rate: Probability in (0, 1] that one record enters a batch.
            steps: Number of steps, at least 1.
        """
        start = validate.positive("noise_multiplier", start)
        rate = validate.in_unit_interval("sample_rate", sample_rate, one=True)
        count = validate.whole("steps", steps, low=1)
        prefix = self.num_prefix(count)
        before = Plan()
        if prefix:
            loud = PoissonGaussian(start * self.prefix_factor, rate)
            before = Plan((EventRun(loud, prefix, PREFIX),))
        if self.shape == "constant":
            return before + Plan((EventRun(PoissonGaussian(start, rate), count - prefix),))
        values = (start * super().factors(count - prefix)).tolist()
        after = Plan(tuple(EventRun(PoissonGaussian(v, rate)) for v in values))
        return before + after.merged()


@dataclass(frozen=True)
class ClipSchedule(_Schedule):
    """Clip norm per step. It has no privacy effect: the noise scales with the clip norm.

    >>> ClipSchedule("exponential", end_ratio=0.25).values(4.0, 3)
    array([4., 2., 1.])
    """

    def values(self, start: float, steps: int) -> NDArray[np.float64]:
        """Return the L2 bound on one record's gradient at each step, float64, shape (steps,)."""
        return validate.positive("max_grad_norm", start) * self.factors(steps)

"""The number of trials of a selection, which is random and secret."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.privacy.events import Plan, RepeatAndSelect
from dpsweep.privacy.events.repeat_and_select import selection_gamma

Array = NDArray[np.float64]

_FIRST_CHUNK, _LARGEST_CHUNK = 1024, 1 << 20


@dataclass(frozen=True)
class Selection:
    """The distribution of K, the number of trials of which the best one is released.

    Truncated negative binomial with gamma set by the mean, for k >= 1:

        P[K = k] = (1-gamma)^k / (gamma^-eta - 1) prod_{l=0}^{k-1} (l + eta) / (l + 1),

    in the limit eta = 0 the logarithmic distribution (1-gamma)^k / (k log(1/gamma)); or Poisson,
    which may give 0: then a fixed default is released (Papernot and Steinke 2022,
    https://arxiv.org/abs/2110.03620).

    >>> selection = Selection(10, 1.0)
    >>> round(selection.probability(1), 3), round(selection.probability(2), 3)
    (0.1, 0.09)

    Attributes:
        mean: E[K], at least 1.
        shape: eta >= 0 (1 is geometric), or ``poisson``.
    Raises:
        BadInputError: A value is out of range.
    """

    mean: float
    shape: float | Literal["poisson"]

    def __post_init__(self) -> None:
        checked = RepeatAndSelect(self.mean, self.shape, Plan(()))
        object.__setattr__(self, "mean", checked.mean)
        object.__setattr__(self, "shape", checked.shape)

    def draw(self, rng: np.random.Generator) -> int:
        """Draw K by inverting its distribution function.

        Guarantees:
            Looks at nothing but ``rng``. K must stay secret (given K, the cost is that of a fixed
            number of trials), so ``rng`` is secret too: ``randomness.secret_numpy_generator``.

        Returns:
            At least 1, or for Poisson at least 0.
        """
        uniform = float(rng.random())
        below = 0.0
        for start, chunk in self._chunks():
            reached = below + np.cumsum(chunk)
            index = int(np.searchsorted(reached, uniform, side="right"))
            if index < len(chunk):
                return start + index
            below = float(reached[-1])
            # Past the mean the terms fall; so few are left that rounding has eaten their share.
            if start > self.mean and chunk[-1] < 1e-25:
                break
        return start + len(chunk) - 1

    def probability(self, k: int) -> float:
        """Return P[K = k]."""
        k = validate.whole("k", k)
        first = self._first()[0]
        if k < first:
            return 0.0
        for start, chunk in self._chunks():
            if k < start + len(chunk):
                return float(chunk[k - start])
            if start > self.mean and chunk[-1] == 0.0:
                break
        return 0.0

    def _first(self) -> tuple[int, float, float]:
        """Return the smallest K, the logarithm of its probability, and log(1 - gamma)."""
        if self.shape == "poisson":
            return 0, -self.mean, 0.0
        eta = float(self.shape)
        gamma = selection_gamma(self.mean, eta)
        if gamma == 1:
            return 1, 0.0, -math.inf
        log_rest = math.log1p(-gamma)
        if eta == 0:
            return 1, log_rest - math.log(-math.log(gamma)), log_rest
        power = -eta * math.log(gamma)
        log_power_excess = power + math.log(-math.expm1(-power))
        return 1, log_rest + math.log(eta) - log_power_excess, log_rest

    def _chunks(self) -> Iterator[tuple[int, Array]]:
        """Yield (k, probabilities of k, k + 1, ..) without end, by the recurrence.

        p_{k+1} = p_k (1-gamma) (k+eta) / (k+1), or p_k mean / (k+1) for Poisson; in logarithms,
        since the first terms may be too small for a float where the mean is large.
        """
        start, log_start, log_rest = self._first()
        size = _FIRST_CHUNK
        while True:
            k = np.arange(start, start + size, dtype=np.float64)
            if self.shape == "poisson":
                steps = math.log(self.mean) - np.log1p(k)
            else:
                steps = log_rest + np.log((k + float(self.shape)) / (k + 1))
            logs = log_start + np.concatenate([[0.0], np.cumsum(steps)])
            with np.errstate(under="ignore"):
                yield start, np.exp(logs[:-1])
            start, log_start = start + size, float(logs[-1])
            size = min(2 * size, _LARGEST_CHUNK)

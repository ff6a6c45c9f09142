"""A clipping norm that follows a quantile of the gradients' norms, by counts that are charged.

Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially private learning with adaptive
clipping" (https://arxiv.org/abs/1905.03871), algorithm 1 with the geometric update. Each step also
releases how many gradients of its batch were within the bound C, with noise, and then

    C <- C exp(-rate (b~ - quantile)),  b~ = 1/2 + (sum_i (b_i - 1/2) + N(0, s^2)) / B,

b_i = 1 where |g_i| <= C, else 0; B the expected batch, s ``clip.count_noise``.

Guarantees:
    A step costs what its event says, the Gaussian mechanism with noise multiplier z on the sampled
    batch, count included. One example adds (clip(g_i), b_i - 1/2) to the two sums, or nothing
    where it is absent or not sampled; |clip(g_i)| <= C and |b_i - 1/2| = 1/2. Let the noise of the
    first be z_g C, that of the second s, with z_g = (z^-2 - (2 s)^-2)^(-1/2) (ibid., theorem 1).
    Divided by these the noise is N(0, 1) in every entry, and what one example moves has the norm

        sqrt((C / (z_g C))^2 + (1 / (2 s))^2) = sqrt(z_g^-2 + (2 s)^-2) = 1 / z.

    In code the count is released in the unit of gradients, times k = C z_g / s, so that one
    deviation, z J = z_g C, suits all entries, and J = C z_g / z = C (1 - (z / 2 s)^2)^(-1/2)
    bounds what one example moves. C is a function of what was released before (adaptive
    composition), and b_i one of example i alone: rows that fill a chunk up are not counted.

    There is no such z_g where z >= 2 s, which is refused with the plan. Not covered beyond that:
    what ``DPSGD`` does not cover.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.privacy.events import Plan, PoissonGaussian
from dpsweep.trainables.methods.batches import num_private_of, sample_rate_of
from dpsweep.trainables.methods.hyperparameters import CLIP_RULE, LEAST_CLIP, MOST_CLIP, QUANTILE

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpsweep.trainables.gradients.per_example import GradientEngine

#: Expected batch / deviation of the count where none is given (ibid., section 3.1).
_BATCH_TO_COUNT_NOISE = 20.0


def follows_quantile(hparams: Mapping[str, Any]) -> bool:
    """Say whether the bound of a configuration moves with what is released."""
    return hparams.get(CLIP_RULE.name) == QUANTILE


def count_noise_of(hparams: Mapping[str, Any], expected_batch: float) -> float:
    """Return s, the standard deviation of the noise in a count.

    >>> count_noise_of({"clip.count_noise": None}, 500.0)
    25.0
    """
    own = hparams["clip.count_noise"]
    return expected_batch / _BATCH_TO_COUNT_NOISE if own is None else float(own)


def joint_of(noise_multiplier: float, count_noise: float) -> float:
    """Return J / C = z_g / z, rounded up: the sensitivity of gradients and count together.

    >>> joint_of(1.0, 1e9) - 1 < 1e-8, round(joint_of(1.0, 1.0), 4)
    (True, 1.1547)
    """
    share = noise_multiplier / (2 * count_noise)
    assert share < 1, "refused with the plan"
    return (1 + 1e-9) / math.sqrt((1 - share) * (1 + share))


def checked_counts(plan: Plan, hparams: Mapping[str, Any], num_private: int) -> Plan:
    """Return a plan whose counts leave room for gradients beside them.

    Args:
        plan: Steps, and whatever comes before them.
        hparams: Every hyperparameter with its value.
        num_private: Declared (public) number of private records.
    Raises:
        InfeasibleBudgetError: The noise of a step is as large as counts alone would need.
    """
    if not follows_quantile(hparams):
        return plan
    batch = sample_rate_of(hparams, num_private) * num_private_of(hparams, num_private)
    own = count_noise_of(hparams, batch)
    most = max(
        (r.event.noise_multiplier for r in plan.runs if isinstance(r.event, PoissonGaussian)),
        default=0.0,
    )
    if most >= 2 * own:
        raise InfeasibleBudgetError(
            f"clip.count_noise={own:g} is not above half of the noise multiplier of a step, "
            f"{most:g}, so that the count alone would cost what the step may",
            fix=f"clip.count_noise >= {most:.3g}, a larger batch, or clip.rule: abadi",
        )
    return plan


def refuse_beside_quantile(hparams: Mapping[str, Any]) -> None:
    """Refuse what else would move the bound, or follow it.

    Raises:
        InfeasibleBudgetError: It is there.
    """
    if not follows_quantile(hparams):
        return
    for name, wrong in _beside(hparams).items():
        raise InfeasibleBudgetError(f"{name} with clip.rule={QUANTILE}: {wrong}", fix=_FIX)


_FIX = "leave one of the two out"


def _beside(hparams: Mapping[str, Any]) -> dict[str, str]:
    wrong = {}
    if hparams.get("clip.shape", "constant") != "constant":
        wrong["clip.shape"] = "a schedule would move the bound too"
    for name in ("optim.noise_lr", "optim.noise_scale"):
        if hparams.get(name) is not None:
            wrong[name] = "the rate would have to follow a bound that nobody knows beforehand"
    if hparams.get("heads.count", 1) > 1:
        wrong["heads.count"] = "many heads have many norms, and share one bound"
    return wrong


def quantile_problems(values: Mapping[str, Sequence[Any]]) -> list[Mistake]:
    """Return what cannot stand beside ``quantile`` in any configuration, as ``preflight`` does."""
    if set(values.get(CLIP_RULE.name, ["abadi"])) != {QUANTILE}:
        return []
    wrong = [_beside({name: value}) for name, each in values.items() for value in each]
    always = {
        name: reason
        for reasons in wrong
        for name, reason in reasons.items()
        if all(_beside({name: value}) for value in values[name])
    }
    return [
        Mistake(name, f"with clip.rule: {QUANTILE}: {reason}", _FIX)
        for name, reason in always.items()
    ]


class Counter(Protocol):
    """What counts gradients within the bound while an engine clips: ``CountedFactors``."""

    count: int | torch.Tensor


class QuantileClip:
    """The bound of a trial that follows a quantile, see the module.

    Attributes:
        bound: C of the next step; a function of what was released.
    """

    def __init__(self, hparams: Mapping[str, Any], expected_batch: float, counter: Counter) -> None:
        self.bound = float(hparams["clip.max_grad_norm"])
        self._quantile = float(hparams["clip.quantile"])
        self._rate = float(hparams["clip.quantile_rate"])
        self._count_noise = count_noise_of(hparams, expected_batch)
        self._batch, self._counter = expected_batch, counter

    def joint(self, noise_multiplier: float) -> float:
        """Return J / C of a step."""
        return joint_of(noise_multiplier, self._count_noise)

    def counting(self, engine: GradientEngine, noise_multiplier: float) -> GradientEngine:
        """Return an engine whose sums end with the count, in the unit of gradients."""
        return _CountingEngine(engine, self._counter, self._weight(noise_multiplier))

    def _weight(self, noise_multiplier: float) -> float:
        """Return k / C = z_g / s."""
        return noise_multiplier * self.joint(noise_multiplier) / self._count_noise

    def follow(self, released: float, noise_multiplier: float) -> None:
        """Move the bound by the count of a step, as it was released in the unit of gradients."""
        count = released / (self.bound * self._weight(noise_multiplier))
        share = 0.5 + count / self._batch
        moved = self.bound * math.exp(-self._rate * (share - self._quantile))
        self.bound = min(max(moved, LEAST_CLIP), MOST_CLIP)


class _CountingEngine:
    """An engine, and the count of gradients that it left as they were."""

    def __init__(self, engine: GradientEngine, counter: Counter, weight: float) -> None:
        self._engine, self._counter, self._weight = engine, counter, weight

    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """See ``GradientEngine``; the last tensor is k sum_i (b_i - 1/2), float64 (1,)."""
        self._counter.count = 0
        sums = self._engine.clipped_gradient_sum(x_source, y_source, rows, max_grad_norm)
        last = sums[0].new_full((1,), -len(rows) / 2)
        return [*sums, last.add_(self._counter.count).mul_(self._weight * max_grad_norm)]

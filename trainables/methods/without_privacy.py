"""Methods of finetuning without privacy: the upper bounds of what they train.

Every method that derives from ``DPSGD`` has such a twin in three lines. What a method claims is a
fact of its class, which every surface reads (``Method.is_private``), so a twin has a name of its
own: a hyperparameter that took the claim away could hide within a space of private trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.batches import num_steps_of, sample_rate_of
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.hyperparameters import (
    CLIP_HYPERPARAMETERS,
    NOISE_HYPERPARAMETERS,
    NOISE_RATE_HYPERPARAMETERS,
)
from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData

#: A bound that no gradient reaches, whose noise of multiplier 0 is 0 all the same.
_UNREACHED = 1e30
_CLIP_RULE = "clip.rule"
_OF_PRIVACY = (*CLIP_HYPERPARAMETERS, *NOISE_HYPERPARAMETERS, *NOISE_RATE_HYPERPARAMETERS)


def without_noise(declared: Iterable[Hyperparameter]) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that have a meaning without clipping and noise.

    >>> names = [knob.name for knob in without_noise(DPSGD.hyperparameters)]
    >>> "optim.lr" in names, "clip.max_grad_norm" in names, "noise.shape" in names
    (True, False, False)
    """
    names = {knob.name for knob in _OF_PRIVACY}
    return tuple(
        knob
        for knob in declared
        if knob.name not in names and not knob.name.startswith(("clip.", "noise."))
    )


class WithoutPrivacy(DPSGD):
    """What a method of noisy gradients does, with neither clipping nor noise; a mixin before it.

    Network, what of it trains, phases, optimizer and Poisson batches are those of the method.
    Batches come from a public seed.

    Guarantees:
        None. Its plan says so (epsilon is infinite), so a trial of it never looks private, and
        every accounting mode that makes a claim refuses it.
    """

    is_private: ClassVar[bool] = False

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one event without a finite epsilon per step; the budget does not apply."""
        sample_rate = sample_rate_of(hparams, context.num_private)
        return Plan((EventRun(NonPrivateEvent(), count=num_steps_of(hparams, sample_rate)),))

    @classmethod
    def _bounds(cls, hparams: Mapping[str, Any], num_steps: int) -> np.ndarray:
        return np.full(num_steps, _UNREACHED)

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``DPSGD.prepare``; steps have the noise multiplier 0.

        Raises:
            ValueError: The plan holds an event that is not this method's.
        """
        for run in plan.runs:
            if not isinstance(run.event, NonPrivateEvent):
                raise ValueError(f"{self.name} cannot execute {run.event}")
        sample_rate = sample_rate_of(hparams, data.info.num_private)
        hidden = {_CLIP_RULE: "abadi", **{knob.name: knob.default for knob in _OF_PRIVACY}}
        silent = Plan((EventRun(PoissonGaussian(0.0, sample_rate), count=len(plan)),))
        super().prepare(data, {**hidden, **hparams}, silent, context)
        self._plan = plan

    def _draw_batch(self, generator: np.random.Generator, sample_rate: float) -> np.ndarray:
        """Return the Poisson batch of the position that is executed, from a public seed."""
        seed = public_seed(self._context.seed, self._context.trial, f"batch {self._position}")
        return super()._draw_batch(np.random.default_rng(seed), sample_rate)


class BiTFiTNonPrivate(WithoutPrivacy, BiTFiT):
    """Every variant of ``bitfit`` without privacy: BiTFiT, LoRA, adapters, last layer and full.

    The non-private columns of Bu et al. 2024 (tables 3 to 6).

    Guarantees:
        None; see ``WithoutPrivacy``.
    """

    name: ClassVar[str] = "bitfit_non_private"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = without_noise(BiTFiT.hyperparameters)


class SparseNonPrivate(WithoutPrivacy, SparseFinetuning):
    """Every ``sparse.train`` without privacy: how much of a gap is sparsity, how much is noise.

    Guarantees:
        None; see ``WithoutPrivacy``.
    """

    name: ClassVar[str] = "sparse_non_private"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = without_noise(
        SparseFinetuning.hyperparameters
    )

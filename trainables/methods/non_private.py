"""The same training without privacy: the upper end that a private result is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import PlanContext
from dpsweep.trainables.methods.batches import num_steps_of, sample_rate_of
from dpsweep.trainables.methods.classifier import ClassifierMethod
from dpsweep.trainables.methods.extras.views import AUGMENT_HYPERPARAMETERS

if TYPE_CHECKING:
    import torch


class NonPrivate(ClassifierMethod):
    """Models, optimizers and Poisson batches of DP-SGD, with neither clipping nor noise.

    Guarantees:
        None. Its plan says so (epsilon is infinite), so a trial of it never looks private.
    """

    name: ClassVar[str] = "non_private"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        ClassifierMethod.hyperparameters + AUGMENT_HYPERPARAMETERS
    )
    is_private: ClassVar[bool] = False

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one event without a finite epsilon per step; the budget does not apply."""
        sample_rate = sample_rate_of(hparams, context.num_private)
        return Plan((EventRun(NonPrivateEvent(), count=num_steps_of(hparams, sample_rate)),))

    def _gradient(self, step: int) -> list[torch.Tensor]:
        import torch

        from dpsweep.trainables.gradients.layer_gradients import chunks

        rows = self._rows_of(step)
        sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        physical = int(self._hparams["batch.physical"])
        device = torch.device(self._context.device)
        for x, y in chunks(self._inputs, self._labels, rows, physical, device):
            for view in [x] if self._views is None else self._views(x):
                loss = self._loss(self._model(view), y)
                for total, gradient in zip(sums, torch.autograd.grad(loss, self._parameters)):
                    total.add_(gradient)
        count = 1 if self._views is None else self._views.multiplicity
        return [total.div_(count * self._expected_batch) for total in sums]

    def _rows_of(self, step: int) -> np.ndarray:
        """Return the Poisson batch of a step, from a public seed."""
        seed = public_seed(self._context.seed, self._context.trial, f"batch {step}")
        return self._draw_batch(np.random.default_rng(seed), self._sample_rate)

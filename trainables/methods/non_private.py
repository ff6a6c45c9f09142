"""The same training without privacy: the upper end that a private result is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import BadInputError, Mistake
from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.batches import num_steps_of, sample_rate_of
from dpsweep.trainables.methods.classifier import ClassifierMethod
from dpsweep.trainables.methods.extras.views import AUGMENT_HYPERPARAMETERS

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData

#: Parts of DP-SGD without its claim: what a comparison with it may keep.
UNCLAIMED_HYPERPARAMETERS = (
    Hyperparameter(
        "clip.max_grad_norm",
        "float",
        None,
        "L2 bound on one example's gradient; where absent, gradients are not clipped.",
        low=0,
        open_low=True,
        optional=True,
    ),
    Hyperparameter(
        "noise.noise_multiplier",
        "float",
        0.0,
        "Standard deviation of the noise of a step over clip.max_grad_norm; no epsilon follows "
        "from it here.",
        low=0,
    ),
    Hyperparameter(
        "batch.sampling",
        "str",
        "poisson",
        "poisson, as in private training; or shuffled: records in a new order each epoch, in "
        "batches of batch.expected, whose epsilon nobody here knows.",
        choices=("poisson", "shuffled"),
    ),
)


class NonPrivate(ClassifierMethod):
    """Models, optimizers and batches of DP-SGD without a claim; as a default without its noise.

    By default neither clipping nor noise, in Poisson batches. Each can be had back, and batches can
    be shuffled ones: then only the accuracy is to be compared (Tramer & Boneh 2021,
    https://arxiv.org/abs/2011.11660, table 19).

    Guarantees:
        None. Its plan says so (epsilon is infinite), so a trial of it never looks private,
        whatever noise it adds and however its batches are made.
    """

    name: ClassVar[str] = "non_private"
    is_private: ClassVar[bool] = False
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        *ClassifierMethod.hyperparameters,
        *AUGMENT_HYPERPARAMETERS,
        *UNCLAIMED_HYPERPARAMETERS,
    )

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return also noise that has no bound to be measured by."""
        problems = super().preflight(values, info)
        noises = cls._possible(values, "noise.noise_multiplier")
        bounds = cls._possible(values, "clip.max_grad_norm")
        if bounds == [None] and None not in noises and min(noises) > 0:
            fix = "give the bound, or leave the noise out"
            problems.append(Mistake("clip.max_grad_norm", "noise is measured by it", fix))
        return problems

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one event without a finite epsilon per step; the budget does not apply.

        Raises:
            BadInputError: There is noise and no bound that it is measured by.
        """
        if hparams["noise.noise_multiplier"] and hparams["clip.max_grad_norm"] is None:
            raise BadInputError(
                f"noise.noise_multiplier={hparams['noise.noise_multiplier']:g} is measured by "
                "clip.max_grad_norm, which is null",
                fix="give the bound, or leave the noise out",
            )
        sample_rate = sample_rate_of(hparams, context.num_private)
        return Plan((EventRun(NonPrivateEvent(), count=num_steps_of(hparams, sample_rate)),))

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``ClassifierMethod``; older records name no noise, and no bound or sampling."""
        from dpsweep.trainables.devices.numerics import ForwardPass
        from dpsweep.trainables.gradients.noise import SecretNoise
        from dpsweep.trainables.gradients.per_example import make_engine

        super().prepare(data, hparams, plan, context)
        self._is_shuffled = hparams.get("batch.sampling") == "shuffled"
        self._noise_multiplier = hparams.get("noise.noise_multiplier") or 0.0
        self._noise = SecretNoise(context.device)
        self._forward = ForwardPass(self._model, self._engine_options["precision"])
        self._max_grad_norm = hparams.get("clip.max_grad_norm")
        if self._max_grad_norm is not None:
            self._engine = make_engine(
                self._model,
                int(hparams["batch.physical"]),
                **self._engine_options,
            )

    def _gradient(self, step: int) -> list[torch.Tensor]:
        rows = self._rows_of(step)
        if self._max_grad_norm is None:
            return self._plain_gradient(rows)
        sums = self._engine.clipped_gradient_sum(
            self._inputs, self._labels, rows, self._max_grad_norm
        )
        if self._noise_multiplier:
            for total in sums:
                self._noise.release(total, self._noise_multiplier, self._max_grad_norm)
        return [(total / self._expected_batch).float() for total in sums]

    def _plain_gradient(self, rows: np.ndarray) -> list[torch.Tensor]:
        import torch

        from dpsweep.trainables.devices.numerics import full_float32
        from dpsweep.trainables.gradients.layer_gradients import chunks

        sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        physical = int(self._hparams["batch.physical"])
        device = torch.device(self._context.device)
        with full_float32():  # as with a clip
            for x, y in chunks(self._inputs, self._labels, rows, physical, device):
                for view in [x] if self._views is None else self._views(x):
                    loss = self._loss(self._forward(view), y)
                    for total, gradient in zip(sums, torch.autograd.grad(loss, self._parameters)):
                        total.add_(gradient)
        count = 1 if self._views is None else self._views.multiplicity
        return [total.div_(count * self._expected_batch) for total in sums]

    def _rows_of(self, step: int) -> np.ndarray:
        """Return the batch of a step, rows in ascending order, from a public seed.

        A shuffled batch has ``batch.expected`` records; what an epoch has left over for no whole
        batch waits for the next order.
        """
        if not self._is_shuffled:
            generator = np.random.default_rng(self._public_seed(f"batch {step}"))
            return self._draw_batch(generator, self._sample_rate)
        size = min(max(1, round(self._expected_batch)), len(self._rows))
        epoch, batch = divmod(step, len(self._rows) // size)
        generator = np.random.default_rng(self._public_seed(f"order {epoch}"))
        order = generator.permutation(self._rows)
        return np.sort(order[batch * size : (batch + 1) * size])

    def _public_seed(self, purpose: str) -> int:
        return public_seed(self._context.seed, self._context.trial, purpose)

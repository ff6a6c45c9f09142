"""DOPE-SGD: gradients are clipped around that of public records.

Nasr et al. 2023, "Effectively Using Public Data in Privacy Preserving Machine Learning" (ICML,
https://proceedings.mlr.press/v202/nasr23a.html). Loads no torch until ``prepare``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpsweep.foundation.errors import DataError, Mistake
from dpsweep.privacy.events import Plan
from dpsweep.privacy.randomness import public_seed
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.data.dataset import training_tensors
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.dp_sgd import DPSGD

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
    from dpsweep.trainables.gradients.layer_noise import NoiseFigures
    from dpsweep.trainables.gradients.per_example import GradientEngine


class DOPESGD(DPSGD):
    """DP-SGD whose gradients are clipped around the gradient of public records of the same task.

    Step t takes a batch of the public records, whose mean gradient is c_t, and updates with

        c_t + (sum_i clip(g_i - c_t, C_t) + N(0, (sigma_t C_t)^2)) / B

    over a Poisson sample of the private ones; B is the declared expected batch. Where private and
    public gradients are alike their differences are small, so that a smaller C, and with it less
    noise, clips as little. c_t is added with the weight 1 and not with the share of records that
    were sampled, which is private.

    Guarantees:
        Position t releases ``sum_i clip(g_i - c_t, C_t) + N(0, (sigma_t C_t)^2)`` and nothing else:
        the plan's event at t under add-or-remove-one. Proof: given what was released before, the
        weights and c_t are fixed, c_t being a function of them, of public records and of a public
        seed. A record adds ``clip(g_i - c_t, C_t)`` if it is sampled and zero if not, whatever the
        other records are. So the sums of neighbours, on the same draw of the others, are equal or
        differ in one term, whose norm is at most C_t: the sensitivity of DP-SGD, and rounding is as
        there. Adding c_t is post-processing. Batches, noise and divisor are those of ``DPSGD``.
        Not covered: public records that are private after all.
    """

    name: ClassVar[str] = "dope_sgd"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        *DPSGD.hyperparameters,
        Hyperparameter(
            "public.batch",
            "int",
            256,
            "Public records of a step, drawn anew for each; all of them where there are fewer.",
            low=1,
            uses_public=lambda _: "all public records",
        ),
    )
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "multi_label"})
    reads_text: ClassVar[bool] = False
    reads_public_labels: ClassVar[bool] = True

    @classmethod
    def preflight(cls, values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
        """Return also that there are no public records, or that their labels are not for it."""
        problems = super().preflight(values, info)
        if info.num_public == 0:
            problems.append(
                Mistake(
                    "method",
                    f"{cls.name} clips around the gradient of public records, and there are none",
                    "set data.public.fraction, if that many are public, or use dp_sgd",
                )
            )
        if info.public_labels != "known":
            problems.append(
                Mistake(
                    "method",
                    f"{cls.name} reads the labels of all public records, which are "
                    f"{info.public_labels}",
                    "set data.public.labels: known, or use dp_sgd",
                )
            )
        return problems

    @classmethod
    def check_records(cls, values: Mapping[str, Sequence[Any]], data: SweepData) -> None:
        """See ``ChecksRecords``.

        Raises:
            DataError: Pollution is among the public records, which is of no class of the task.
        """
        if data.polluted is not None:
            raise DataError(
                f"the public records of {data.info.name} are polluted, and {cls.name} clips around "
                "their gradient",
                fix="remove data.public.pollution, or use dp_sgd",
            )

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``DPSGD.prepare``.

        Where public records stand in for private ones, they are the public ones too.

        Raises:
            DataError: There are no public records.
        """
        part = "private" if data.records == "public" else "public"
        if not len(data.parts[part][1]):
            raise DataError(
                f"{self.name} needs public records, and {data.info.name} has none",
                fix="set data.public.fraction, or use dp_sgd",
            )
        super().prepare(data, hparams, plan, context)
        self._public = training_tensors(data, part, context.device)

    def _make_engine(self) -> GradientEngine:
        from dpsweep.trainables.gradients.centred import make_centred_engine

        self._centred = make_centred_engine(
            self._model,
            int(self._hparams["batch.physical"]),
            factors=self._factors,
            **self._engine_options,
        )
        return self._centred

    def _reach(self, step: int) -> None:
        """Clip around the public gradient of this step, at the weights that are there now."""
        self._centred.centre = self._public_gradient(step)

    def _public_gradient(self, step: int) -> list[torch.Tensor]:
        """Return the mean gradient of the public batch of a step."""
        seed = public_seed(self._context.seed, self._context.trial, f"public batch {step}")
        inputs, labels = self._public
        count = min(int(self._hparams["public.batch"]), len(labels))
        rows = np.sort(np.random.default_rng(seed).choice(len(labels), count, replace=False))
        return self._centred.mean_gradient(inputs, labels, rows)

    def _gradient(self, step: int) -> list[torch.Tensor]:
        self._reach(step)
        centre = self._centred.centre
        assert centre is not None
        return [noisy + c for noisy, c in zip(super()._gradient(step), centre)]

    def layer_noise(self, num_records: int) -> NoiseFigures:
        """See ``DPSGD.layer_noise``; gradients are those that are clipped."""
        self._begin()
        self._reach(min(self._position - self._num_before, len(self._events) - 1))
        return super().layer_noise(num_records)

"""The non-private counterpart of ``scatternet``: same features and models, no noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.non_private import NonPrivate
from dpsweep.trainables.methods.scatternet.normalize import (
    NORMALIZE_HYPERPARAMETERS,
    PHASE,
    normalization_of,
)
from dpsweep.trainables.methods.scatternet.on_features import (
    HEAD_HYPERPARAMETERS,
    TRAINING_HYPERPARAMETERS,
    OnFeatures,
)

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import SweepData


class ScatterNetNonPrivate(OnFeatures, NonPrivate):
    """The features and models of ``scatternet`` without noise; clipped only where that is asked.

    With a clip norm it is the noiseless arm of Tramer & Boneh 2021 (figure 3, table 14), without
    one their non-private accuracy (table 11).

    Guarantees:
        None. Its plan says so (epsilon is infinite), so a trial of it never looks private.
    """

    name: ClassVar[str] = "scatternet_non_private"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        FEATURE_HYPERPARAMETERS
        + tuple(p for p in NORMALIZE_HYPERPARAMETERS if p.name != "normalize.noise_multiplier")
        + HEAD_HYPERPARAMETERS
        + (
            Hyperparameter(
                "clip.max_grad_norm",
                "float",
                None,
                "L2 bound on one example's gradient; where absent, gradients are not clipped.",
                low=0,
                open_low=True,
                optional=True,
            ),
        )
        + TRAINING_HYPERPARAMETERS
    )

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one event without a finite epsilon per position."""
        before = Plan(())
        if normalization_of(hparams) == "private_data":
            before = Plan((EventRun(NonPrivateEvent(), 2, phase=PHASE),))
        return before + super().plan(hparams, context)

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``OnFeatures.prepare``."""
        from dpsweep.trainables.gradients.per_example import make_engine

        super().prepare(data, hparams, plan, context)
        self._max_grad_norm = hparams["clip.max_grad_norm"]
        if self._max_grad_norm is not None:
            self._engine = make_engine(
                self._model,
                int(hparams["batch.physical"]),
                expected_batch=self._expected_batch,
            )

    def _add_noise(self, total: torch.Tensor, position: int, max_norm: float) -> None:
        """Add nothing."""

    def _gradient(self, step: int) -> list[torch.Tensor]:
        if self._max_grad_norm is None:
            return super()._gradient(step)
        sums = self._engine.clipped_gradient_sum(
            self._inputs, self._labels, self._rows_of(step), self._max_grad_norm
        )
        return [(total / self._expected_batch).float() for total in sums]

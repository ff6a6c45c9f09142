"""The non-private counterpart of ``scatternet``: same features and models, no noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.features.choice import FEATURE_HYPERPARAMETERS
from dpsweep.trainables.method import PlanContext
from dpsweep.trainables.methods.non_private import UNCLAIMED_HYPERPARAMETERS, NonPrivate
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


class ScatterNetNonPrivate(OnFeatures, NonPrivate):
    """The features and models of ``scatternet`` without a claim; noise only where that is asked.

    With a clip norm it is the noiseless arm of Tramer & Boneh 2021 (figure 3, table 14), without
    one their non-private accuracy (table 11); with noise too, and ``batch.sampling: shuffled``, the
    shuffled arm of table 19. Channel statistics of ``private_data`` get no noise.

    Guarantees:
        None. Its plan says so (epsilon is infinite), so a trial of it never looks private,
        whatever noise it adds and however its batches are made.
    """

    name: ClassVar[str] = "scatternet_non_private"
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        FEATURE_HYPERPARAMETERS
        + tuple(p for p in NORMALIZE_HYPERPARAMETERS if p.name != "normalize.noise_multiplier")
        + HEAD_HYPERPARAMETERS
        + UNCLAIMED_HYPERPARAMETERS
        + TRAINING_HYPERPARAMETERS
    )

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one event without a finite epsilon per position."""
        before = Plan(())
        if normalization_of(hparams) == "private_data":
            before = Plan((EventRun(NonPrivateEvent(), 2, phase=PHASE),))
        return before + super().plan(hparams, context)

    def _add_noise(self, total: torch.Tensor, position: int, max_norm: float) -> None:
        """Add nothing."""

"""The same head without privacy: the upper end that AdaMix is compared with.

Loads no torch until ``prepare``, so that plans can be made and checked without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.events import NonPrivate as NonPrivateEvent
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.adamix.linear_probe import (
    PROBE_FEATURES,
    PROBE_TRAIN,
    SHOT_HYPERPARAMETERS,
    LinearProbe,
)

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData


class AdaMixParagon(LinearProbe):
    """The same head on the same features and records, without clipping and noise: an upper bound.

    Full-batch gradient descent with momentum on private and public records together.

    Guarantees:
        None. Its plan says so (epsilon is infinite), so a trial of it never looks private.
    """

    name: ClassVar[str] = "adamix_paragon"
    is_private: ClassVar[bool] = False
    hyperparameters: ClassVar[tuple[Hyperparameter, ...]] = (
        *PROBE_FEATURES,
        Hyperparameter(
            "optim.lr",
            "float",
            1.0,
            "Learning rate; gradients are means over private and public records.",
            low=0,
            open_low=True,
        ),
        Hyperparameter("regularize.weight", "float", 0.0, "L2 penalty on the weights.", low=0),
        Hyperparameter("optim.momentum", "float", 0.9, "Momentum.", low=0, high=0.9999),
        Hyperparameter("train.max_steps", "int", 1000, "Full-batch steps.", low=1),
        *SHOT_HYPERPARAMETERS,
        *PROBE_TRAIN,
    )

    @classmethod
    def plan(cls, hparams: Mapping[str, Any], context: PlanContext) -> Plan:
        """Return one event without a finite epsilon per step; the budget does not apply."""
        return Plan((EventRun(NonPrivateEvent(), count=hparams["train.max_steps"]),))

    def prepare(
        self, data: SweepData, hparams: Mapping[str, Any], plan: Plan, context: RunContext
    ) -> None:
        """See ``LinearProbe``; weights start at zero."""
        import torch

        super().prepare(data, hparams, plan, context)
        self._velocity = torch.zeros_like(self._weight)

    def _step(self, position: int) -> None:
        total = self._private.gradient_sum(self._weight)[0]
        total += self._public.gradient_sum(self._weight)[0]
        total /= self._num_private + len(self._public)
        total += self._hparams["regularize.weight"] * self._weight
        self._velocity = self._hparams["optim.momentum"] * self._velocity + total.to(self._weight)
        self._weight = self._weight - self._hparams["optim.lr"] * self._velocity

    def state_dict(self) -> dict[str, Any]:
        """Return weights, velocity and position."""
        return {**super().state_dict(), "velocity": self._velocity.to("cpu", copy=True)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._velocity = state["velocity"].to(self._weight.device, copy=True)

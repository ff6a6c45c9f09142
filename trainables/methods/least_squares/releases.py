"""The releases of a trial of least squares: sums over private records, noise, what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import sqrt
from typing import Any

import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.events import Gaussian, Plan, PrivacyEvent
from dpsweep.trainables.features.extractors import norm_layers
from dpsweep.trainables.gradients.clipping import noise_bound
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.hooks import Contributions
from dpsweep.trainables.methods.least_squares import solving, statistics
from dpsweep.trainables.methods.least_squares.knobs import CLOSED, COVARIANCE, ridge_of

#: Bytes that an audit may hold of what canaries add.
_MOST_AUDITED = 4 * 2**30


class Releases:
    """Private records, and the noisy sums over them that the positions of a plan release.

    Guarantees:
        ``release`` returns the sum of a position with the Gaussian noise of the plan's multiplier
        times the sensitivity, and nothing else of the records: 1 for the covariance and the targets
        (``statistics``), C for gradients. Noise is larger by ``clipping.noise_margin``.

    Args:
        inputs: Features, (records, ...).
        labels: Classes, int64 (records,).
        hparams: Every hyperparameter with its value.
        plan: Of the trial; Gaussians alone.
        num_private: Declared number of records: the true one is private.
        num_classes: C.
        device: Where sums are formed.
    """

    def __init__(
        self,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        *,
        hparams: Mapping[str, Any],
        plan: Plan,
        num_private: int,
        num_classes: int,
        device: str,
    ) -> None:
        self.inputs, self.labels, self.num_private = inputs, labels, num_private
        self._hparams, self._plan, self._device = hparams, plan, device
        self._num_classes = num_classes
        self.is_closed = hparams["least_squares.variant"] == CLOSED
        self.covariance_at = 1 if self.is_closed else 0
        self._noise = SecretNoise(device)
        self._records: statistics.UnitRecords | None = None
        if not self.is_closed:
            self._records = statistics.UnitRecords(inputs, labels, device=device)

    @property
    def _max_grad_norm(self) -> float:
        return float(self._hparams["clip.max_grad_norm"])

    def bound(self, position: int) -> float:
        """Return the most that one record moves the sum of a position, rounding aside."""
        is_step = not self.is_closed and position != self.covariance_at
        return self._max_grad_norm if is_step else 1.0

    def _sum(
        self,
        position: int,
        weight: torch.Tensor,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        records: statistics.UnitRecords | None,
    ) -> torch.Tensor:
        """Return the sum of a position over records, without noise, float64."""
        if position == self.covariance_at:
            return statistics.covariance(inputs, device=self._device)
        if records is None:
            return statistics.class_sums(inputs, labels, self._num_classes, device=self._device)
        return records.gradient_sum(weight.float(), self._max_grad_norm)[0]

    def release(
        self,
        position: int,
        weight: torch.Tensor,
        observer: Callable[[torch.Tensor], None] | None,
    ) -> torch.Tensor:
        """Return the noisy sum of a position, float64.

        Args:
            position: Of the plan.
            weight: That gradients are taken at, float64 (classes, features).
            observer: Sees the noise; for tests.
        """
        total = self._sum(position, weight, self.inputs, self.labels, self._records)
        sigma = _noise_multiplier(self._plan.at(position))
        bound = noise_bound(self.bound(position), self.num_private)
        return self._noise.release(total, sigma, bound, observer=observer)

    def contributions(self, position: int, weight: torch.Tensor) -> Contributions:
        """Return what each record adds to a release, alone; see ``Auditable``.

        Raises:
            BadInputError: They take more than 4 GiB.
        """
        num_classes, size = weight.shape
        is_covariance = position == self.covariance_at
        entries = size * (size + 1) // 2 if is_covariance else num_classes * size
        count, most = len(self.labels), _MOST_AUDITED // (4 * entries)
        if count > most:
            raise BadInputError(
                f"what {count} canaries add to a covariance of {size} features takes "
                f"{count * entries * 4 / 2**30:.1f} GiB",
                because=f"each adds {entries} numbers, and 4 GiB are the most",
                fix=f"--canaries {most}, or an audit on fewer features: --method least_squares",
            )
        sums = (self._sum(position, weight, *record) for record in self._alone())
        rows = torch.stack([total.flatten().float().cpu() for total in sums])
        return Contributions(rows, self.bound(position))

    def _alone(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, Any]]:
        alone = iter(()) if self._records is None else self._records.alone()
        for i in range(len(self.labels)):
            yield self.inputs[i : i + 1], self.labels[i : i + 1], next(alone, None)

    def inverse(self, triangle: torch.Tensor) -> solving.Inverse:
        """Return the inverse of a released covariance, with the ridge of the configuration.

        Args:
            triangle: Released, float64 (d (d + 1) / 2,).
        """
        others = [run for run in self._plan.runs if run.phase != COVARIANCE]
        bound = 1.0 if self.is_closed else self._max_grad_norm
        noises = [bound * sqrt(run.count) * _noise_multiplier(run.event) for run in others]
        size = self.inputs.shape[1:].numel()
        return solving.inverse(
            statistics.symmetric(triangle, size), ridge_of(self._hparams, noises)
        )

    def network(self, weight: torch.Tensor) -> nn.Sequential:
        """Return a head as a network on features, which divides each record by its norm."""
        num_classes, num_features = weight.shape
        head = nn.Linear(num_features, num_classes, bias=False, device=weight.device)
        head.weight.data.copy_(weight)
        layers = [*norm_layers("l2", tuple(self.inputs.shape[1:])), nn.Flatten(), head]
        return nn.Sequential(*layers).to(weight.device).requires_grad_(False).eval()


def _noise_multiplier(event: PrivacyEvent) -> float:
    assert isinstance(event, Gaussian)
    return event.noise_multiplier

"""Gaussian noise on a sum over all records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dpsweep.foundation import validate
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, Check, PrivacyEvent


@dataclass(frozen=True)
class Gaussian(PrivacyEvent):
    """A Gaussian-noised sum over all records.

    Attributes:
        noise_multiplier: Noise standard deviation divided by the L2 sensitivity, >= 0.
    """

    noise_multiplier: float

    name: ClassVar[str] = "gaussian"
    checks: ClassVar[Mapping[str, Check]] = {"noise_multiplier": validate.non_negative}

    @property
    def sampling(self) -> str:
        """All records enter."""
        return "full_batch"

    def renyi(self, orders: Array) -> Array:
        """Return order / (2 noise_multiplier^2), rounded up."""
        return np.asarray(self.curves([self], orders)[0])

    @classmethod
    def curves(cls, events: Sequence[Self], orders: Array) -> Array:
        """Return the curves of several of them."""
        noise = np.array([event.noise_multiplier for event in events])
        return rdp.poisson_gaussian_rdp(noise, 1.0, orders)

    def dp_event(self) -> Any:
        """Return it as a ``GaussianDpEvent``."""
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.noise_multiplier)

    def gaussian_variance(self) -> float | None:
        """Return the square of the noise multiplier."""
        return self.noise_multiplier**2

    def relative_noise(self) -> float | None:
        """Return the noise multiplier."""
        return self.noise_multiplier

    def sort_key(self) -> tuple[str, Any, Any]:
        """Sort by the noise."""
        return ("Gaussian", self.noise_multiplier, 0.0)

    def privacy_loss(self, interval: float) -> Any:
        """Return its distribution."""
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_gaussian_mechanism(
            self.noise_multiplier, value_discretization_interval=interval, sampling_prob=1.0
        )

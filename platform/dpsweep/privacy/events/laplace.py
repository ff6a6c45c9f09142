"""Laplace noise on a sum over all records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpsweep.foundation import validate
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, Check, PrivacyEvent


@dataclass(frozen=True)
class Laplace(PrivacyEvent):
    """A Laplace-noised sum over all records: (1/scale)-DP.

    Attributes:
        scale: Scale of the noise divided by the L1 sensitivity, >= 0.
    """

    scale: float

    name: ClassVar[str] = "laplace"
    checks: ClassVar[Mapping[str, Check]] = {"scale": validate.non_negative}

    @property
    def sampling(self) -> str:
        """All records enter."""
        return "full_batch"

    def renyi(self, orders: Array) -> Array:
        """Return the curve of Mironov 2017, proposition 6, rounded up.

        With e = 1 / scale: r(a) = e + log(1 + (a-1) (e^((1-2a) e) - 1) / (2a-1)) / (a-1).
        """
        if self.scale == 0:
            return np.full(len(orders), np.inf)
        epsilon = 1.0 / self.scale
        inner = (orders - 1) * np.expm1(epsilon * (1 - 2 * orders)) / (2 * orders - 1)
        curve = np.maximum(epsilon + np.log1p(inner) / (orders - 1), 0.0)
        return np.asarray(curve * rdp.ROUND_UP)

    def dp_event(self) -> Any:
        """Return it as a ``LaplaceDpEvent``."""
        import dp_accounting

        return dp_accounting.LaplaceDpEvent(self.scale)

    def pure_epsilon(self) -> float:
        """Return 1 / scale."""
        return 1.0 / self.scale if self.scale > 0 else math.inf

    def sort_key(self) -> tuple[str, Any, Any]:
        """Sort by the noise."""
        return ("Laplace", self.scale, 0.0)

    def privacy_loss(self, interval: float) -> Any:
        """Return its distribution."""
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_laplace_mechanism(
            self.scale, value_discretization_interval=interval
        )

"""Access without any noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpsweep.privacy.events.base import Array, PrivacyEvent


@dataclass(frozen=True)
class NonPrivate(PrivacyEvent):
    """An access to private records without a finite epsilon."""

    name: ClassVar[str] = "non_private"

    @property
    def sampling(self) -> str:
        """Nothing is claimed of it."""
        return "none"

    @property
    def is_private(self) -> bool:
        """False."""
        return False

    def renyi(self, orders: Array) -> Array:
        """Return infinity at every order."""
        return np.full(len(orders), np.inf)

    def dp_event(self) -> Any:
        """Return it as a ``NonPrivateDpEvent``."""
        import dp_accounting

        return dp_accounting.NonPrivateDpEvent()

"""The account of a simulated study: what is reserved, where there is a filter, and charged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpsweep.planning.simulation.trials import Array, Planned
from dpsweep.privacy import rdp
from dpsweep.privacy.events import Plan
from dpsweep.privacy.filter import FilterAccount, RenyiFilter


class Account:
    """The study ledger of a simulation: reservations if there is a filter, and what was charged.

    Args:
        filter: Of a composed study, or None.
        planned: The configurations that were planned and may be admitted.
        num_rungs: Reports of a whole trial besides those of its grid.
        release: Renyi cost of one noisy score at each order; zeros where scores cost nothing.
    """

    def __init__(
        self,
        filter: RenyiFilter | None,
        planned: Mapping[int, Planned],
        *,
        num_rungs: int,
        release: Array,
    ) -> None:
        self._account = None if filter is None else FilterAccount(filter)
        self._planned, self._num_rungs, self._release = planned, num_rungs, release
        self.totals = {part: np.zeros(len(release)) for part in ("private", "validation")}

    def reserve(self, trial: int, plan: Plan, *, epsilon: float, task: str = "") -> bool:
        """Reserve the whole cost of a planned trial, if it fits."""
        if self._account is None:
            return True
        planned = self._planned[trial]
        num_releases = int(planned.on_grid.sum()) + self._num_rungs
        cost = {
            "private": float(planned.costs[-1, 0]),
            "validation": num_releases * float(self._release[0]),
        }
        return self._account.reserve(trial, cost)

    def charge(self, planned: Planned, index: int, before: int | None) -> None:
        """Charge what ran since the report ``before`` (None: since the start), and a score."""
        self.totals["private"] += planned.costs[index]
        if before is not None and planned.task.is_private:  # else infinite from the first on
            self.totals["private"] -= planned.costs[before]
        self.totals["validation"] += self._release

    def settle(self, trial: int, planned: Planned, index: int, num_releases: int) -> None:
        """Give back what a trial has reserved and not charged."""
        if self._account is not None:
            self._account.settle(
                trial,
                {
                    "private": float(planned.costs[index, 0]),
                    "validation": num_releases * float(self._release[0]),
                },
            )

    @property
    def has_filter(self) -> bool:
        """True if the study has a budget of its own."""
        return self._account is not None

    @property
    def share(self) -> float:
        """Committed share of the budget, 0 without a filter."""
        if self._account is None:
            return 0.0
        return max(self._account.committed.values()) / self._account.filter.budget

    def epsilon(self, orders: Array, delta: float) -> float:
        """Return the epsilon of everything that was charged (see ``PolicyRun``)."""
        if self._account is not None:
            return self._account.filter.epsilon(max(self._account.committed.values()))
        curves = np.stack(list(self.totals.values()))
        return float(rdp.epsilons(curves, orders, delta)[0].max())

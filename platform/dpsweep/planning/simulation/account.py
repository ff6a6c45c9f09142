"""The account of a simulated study: what is reserved of its budget, and what was charged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpsweep.foundation.errors import SweepError
from dpsweep.planning.simulation.trials import Array, Planned
from dpsweep.privacy import rdp
from dpsweep.privacy.composition.account import CompositionAccount
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.events import Plan
from dpsweep.study.trial import TrialTask


class Account:
    """The study ledger of a simulation: reservations if there is a budget, and what was charged.

    Args:
        composition: Of a composed study, or None.
        planned: The configurations that were planned and may be admitted.
        num_rungs: Reports of a whole trial besides those of its grid.
        release: Renyi cost of one noisy score at each order; zeros where scores cost nothing.
        score: Events of one noisy score; none where scores cost nothing.
    """

    def __init__(
        self,
        composition: Composition | None,
        planned: Mapping[int, Planned],
        *,
        num_rungs: int,
        release: Array,
        score: Plan,
    ) -> None:
        self._account = None if composition is None else CompositionAccount(composition)
        self._planned, self._num_rungs, self._release = planned, num_rungs, release
        self._score = None if composition is None else composition.cost(score)
        self._delivered: TrialTask | None = None
        self.totals = {part: np.zeros(len(release)) for part in ("private", "validation")}

    def reserve(
        self,
        trial: int,
        plan: Plan,
        *,
        epsilon: float,
        task: str = "",
        at_first: Plan | None = None,
    ) -> bool:
        """Reserve the whole cost of a planned trial, or what it needs at first, if it fits."""
        if self._account is None:
            return True
        planned = self._planned[trial]
        index, num_releases = -1, int(planned.on_grid.sum()) + self._num_rungs
        if at_first is not None:
            index = int(np.flatnonzero(planned.rungs)[0])
            num_releases = index + 1
        return self._account.reserve(trial, self._cost(planned, index, num_releases))

    def _cost(self, planned: Planned, index: int, num_releases: int) -> dict[str, float]:
        """Return what a trial has taken of each limit by a report, so many scores included."""
        assert self._score is not None
        assert planned.taken is not None
        taken = planned.taken[index].tolist()
        return {
            name: amount + num_releases * score
            for amount, (name, score) in zip(taken, self._score.items())
        }

    def charge(self, planned: Planned, index: int, before: int | None) -> None:
        """Charge what ran since the report ``before`` (None: since the start), and a score."""
        self.totals["private"] += planned.costs[index]
        if before is not None and planned.task.is_private:  # else infinite from the first on
            self.totals["private"] -= planned.costs[before]
        self.totals["validation"] += self._release

    def settle(self, trial: int, planned: Planned, index: int, num_releases: int) -> None:
        """Give back what a trial has reserved and not charged."""
        if self._account is not None:
            self._account.settle(trial, self._cost(planned, index, num_releases))

    def deliver(self, task: TrialTask) -> None:
        """Charge the final run after a search on other records.

        Raises:
            SweepError: It does not fit into what is kept for it.
        """
        self._delivered = task
        if self._account is None:
            return
        if not self._account.reserve(task.trial, self._account.composition.cost(task.full_plan)):
            raise SweepError(
                f"trial {task.trial}, the final run, does not fit into what is kept for it"
            )

    @property
    def has_budget(self) -> bool:
        """True if the study has a budget of its own."""
        return self._account is not None

    @property
    def share(self) -> float:
        """Committed share of the budget, 0 without one."""
        if self._account is None:
            return 0.0
        return self._account.composition.share(self._account.committed)

    def epsilon(self, orders: Array, delta: float) -> float:
        """Return the epsilon of everything that was charged (see ``PolicyRun``)."""
        if self._account is not None:
            return self._account.composition.spent_epsilon(self._account.committed)
        if self._delivered is not None:  # on public records the search before it is free
            return self._delivered.planned_epsilon
        curves = np.stack(list(self.totals.values()))
        return float(rdp.epsilons(curves, orders, delta)[0].max())

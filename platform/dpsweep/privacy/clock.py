"""The epsilon clock: what a trial has spent after each of its plan's positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events.base import checked_pure
from dpsweep.privacy.events.multiset import event_curves, multiset, plan_curve
from dpsweep.privacy.events.plan import NO_PLAN, Plan
from dpsweep.privacy.orders import is_sparse, refined
from dpsweep.privacy.terms import ACCOUNTANTS, AccountantName

_CHUNK_ROWS = 2048  # rows of a table computed at once: 2.7 MB of curves


class EpsilonClock:
    """Epsilon of ``spent`` and the first positions of ``plan``, for every position.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> clock = EpsilonClock(Plan((EventRun(PoissonGaussian(1.0, 0.01), 5000),)), delta=1e-5)
    >>> round(clock.epsilon_after(1000), 4), clock.last_allowed(2.0)
    (2.1014, 881)

    Guarantees:
        The values are ``epsilon_of`` the same events and never decrease in the position; where it
        does (by up to 3%, at best Renyi orders above 1024), they are those of fewer events. A fixed
        plan only: the plan, hence the clock, does not depend on private data. About the private
        part alone: releases on validation records have no position.

    Args:
        plan: What the trial will do, restricted to the private part.
        delta: In (0, 1).
        accountant: ``rdp`` (a table of all positions on first use; a look-up takes microseconds)
            or ``pld`` (each position computed when it is asked for, and remembered).
        spent: What was charged to the private part before position 0 (crashed segments of earlier
            processes).
    Raises:
        BadInputError: An event is about other records.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        delta: float,
        accountant: AccountantName = "rdp",
        spent: Plan = NO_PLAN,
    ) -> None:
        validate.one_of("accountant", accountant, ACCOUNTANTS)
        others = {run.part for run in (plan + spent).runs} - {"private", "public"}
        if others:
            raise BadInputError(
                f"a clock is about private records, not about {', '.join(sorted(others))} ones",
                fix='plan.part("private")',
            )
        self.plan = plan
        self.spent = spent
        self.delta = validate.in_unit_interval("delta", delta)
        self.accountant: AccountantName = accountant
        self._known: dict[int, float] = {}
        self._values: list[float] | None = None

    def epsilon_after(self, position: int) -> float:
        """Return the epsilon once the events before ``position`` have run.

        Args:
            position: 0 to ``len(plan)``.
        """
        values = self._values
        if values is None and self.accountant == "rdp":
            values = self._values = self._table.tolist()
        if not 0 <= position <= len(self.plan):
            raise IndexError(f"position {position} of a plan of {len(self.plan)} events")
        if values is not None:
            return values[position]
        if position not in self._known:
            self._known[position] = self._exactly_after(position)
        return self._known[position]

    def _exactly_after(self, position: int) -> float:
        plan = self.spent + self.plan.slice(0, position)
        return epsilon_of(plan, delta=self.delta, accountant=self.accountant)

    def table(self) -> NDArray[np.float64]:
        """Return ``epsilon_after`` of positions 0 to ``len(plan)``, float64, read-only.

        Raises:
            BadInputError: The accountant is ``pld``, for which a table would take hours.
        """
        if self.accountant != "rdp":
            raise BadInputError(
                f"the {self.accountant} accountant has no table of all positions",
                fix="accountant rdp, or epsilon_after at the positions that are needed",
            )
        return self._table

    def last_allowed(self, target_epsilon: float) -> int:
        """Return the largest position whose epsilon is at most the target, 0 if there is none."""
        if self.accountant == "rdp":
            position = int(np.searchsorted(self._table, target_epsilon, side="right")) - 1
        else:
            position = self._bisect(lambda epsilon: epsilon > target_epsilon) - 1
        # The table sums in another order than the accountant that will refuse an event.
        while position > 0 and self._exactly_after(position) > target_epsilon:
            position -= 1
        return max(position, 0)

    def position_at(self, epsilon: float) -> int:
        """Return the first position whose epsilon reaches ``epsilon``, ``len(plan)`` if none."""
        if self.accountant == "rdp":
            position = int(np.searchsorted(self._table, epsilon, side="left"))
        else:
            position = self._bisect(lambda value: value >= epsilon)
        return min(position, len(self.plan))

    def _bisect(self, passed: Callable[[float], bool]) -> int:
        """Return the first position that has ``passed``, or ``len(plan) + 1``."""
        low, high = 0, len(self.plan) + 1
        while low < high:
            middle = (low + high) // 2
            if passed(self.epsilon_after(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        runs = self.plan.runs
        charged = [index for index, run in enumerate(runs) if run.part != "public"]
        counts = np.array([run.count for run in runs], dtype=np.int64)
        run_of = np.repeat(np.arange(len(runs)), counts)
        first = np.concatenate([[0], np.cumsum(counts)])
        since = np.arange(1, len(run_of) + 1) - first[run_of] if len(runs) else np.zeros(0)
        spent = multiset(self.spent)
        table = np.empty(len(run_of) + 1)
        table[0] = epsilon_of(self.spent, delta=self.delta, accountant="rdp")

        def curves_of(orders: NDArray[np.float64]) -> Callable[[NDArray[np.int64]], Any]:
            """Return a function from positions to what they have spent at each order."""
            curves = np.zeros((len(runs), len(orders)))
            curves[charged] = event_curves([runs[index].event for index in charged], orders)
            starts = np.empty_like(curves)
            running = plan_curve(spent, orders)
            for index in range(len(runs)):
                starts[index] = running
                running = running + counts[index] * curves[index]
            return lambda part: starts[run_of[part]] + since[part, None] * curves[run_of[part]]

        rows, best_orders = np.arange(len(run_of)), np.zeros(len(run_of))
        for level in range(len(rdp.HIGH_ORDERS) + 1):
            orders = rdp.orders_at(level)
            spent_at, unsettled = curves_of(orders), []
            for begin in range(0, len(rows), _CHUNK_ROWS):
                part = rows[begin : begin + _CHUNK_ROWS]
                table[part + 1], best = rdp.epsilons(spent_at(part), orders, self.delta)
                best_orders[part] = orders[best]
                at_end = (best == len(orders) - 1) & (table[part + 1] > 0)
                unsettled.append(part[at_end])
            rows = np.concatenate(unsettled) if unsettled else rows[:0]
            # Only rows whose best order is the grid's last can gain from higher orders.
            if len(rows) == 0:
                break
        sparse = np.flatnonzero(is_sparse(best_orders) & (table[1:] > 0))
        if len(sparse):
            table[sparse + 1], _ = refined(
                lambda rows, orders: curves_of(orders)(sparse[rows]),
                table[sparse + 1],
                best_orders[sparse],
                self.delta,
            )
        pure = np.zeros(len(runs))
        pure[charged] = [checked_pure(runs[index].event) for index in charged]
        if len(runs) and np.isfinite(pure[0]):
            before = sum(count * checked_pure(event) for event, count in spent)
            table[1:] = np.minimum(table[1:], before + np.cumsum(pure[run_of]))
        table = np.maximum.accumulate(table)
        table.flags.writeable = False
        return table

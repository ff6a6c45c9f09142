"""Who holds how much of a composition: reservations of running trials, costs of all others."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpsweep.privacy.composition.base import Composition, Cost

# Costs are added as whole multiples of 2^-64: sums and differences of any number of them are exact.
_BITS = 64
_UNBOUNDED = 1 << 1000


def _units(cost: float) -> int:
    """Return a cost in units, rounded up; what is no finite number fits into no budget."""
    return math.ceil(math.ldexp(cost, _BITS)) if 0 <= cost <= 1e100 else _UNBOUNDED


def _number(units: int) -> float:
    return units / (1 << _BITS) if units < _UNBOUNDED else math.inf


class CompositionAccount:
    """Who holds how much of one composition: reservations of running trials, costs of others.

    >>> from dpsweep.privacy.composition.renyi_filter import RenyiFilter
    >>> account = CompositionAccount(RenyiFilter.at(8, target_epsilon=2.0, delta=1e-5))
    >>> account.reserve(0, {"private": 0.5, "validation": 0.0})
    True
    >>> account.reserve(1, {"private": 0.5, "validation": 0.0})
    False
    >>> account.settle(0, {"private": 0.1, "validation": 0.0})
    >>> account.reserve(1, {"private": 0.5, "validation": 0.0})
    True

    Guarantees:
        At every moment, of every limit, the sum of what running trials may still charge at most and
        of what all others did charge is within it, as long as no trial charges more than it
        reserved (``TrialLedger`` refuses that). So the condition of the composition's theorem holds
        for every interleaving of the trials' events. Sums are exact. A phase begins when nothing
        runs any more that holds something of an earlier one, and none of these is open again.

    Args:
        composition: The study's own.
    """

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self._limits = {
            name: math.floor(math.ldexp(limit, _BITS)) for name, limit in composition.limits.items()
        }
        self._running: dict[int, dict[str, int]] = {}
        self._settled: dict[int, dict[str, int]] = {}
        self._total = self._nothing()
        self._phase = 0

    def _nothing(self) -> dict[str, int]:
        return dict.fromkeys(self._limits, 0)

    def fits(self, cost: Cost, *, trial: int | None = None) -> bool:
        """Say whether a reservation would be accepted now; without ``trial``, one of a new trial.

        Nothing new is ever accepted where a limit is passed, even at no cost.
        """
        if trial in self._running:
            return True
        held, asked = self._held(trial), self._asked(trial, cost)
        if not self._is_open(held, asked):
            return False
        return all(
            self._total[name] - held[name] + asked[name] <= limit
            for name, limit in self._limits.items()
        )

    def _is_open(self, held: Mapping[str, int], asked: Mapping[str, int]) -> bool:
        """Say whether what is asked for is of the phase that the study is in, or may be now."""
        new = self._phases({name: asked[name] - held[name] for name in asked})
        if len(new) > 1 or min(new, default=self._phase) < self._phase:
            return False
        return new <= {self._phase} or not any(map(self._phases, self._running.values()))

    def _phases(self, amounts: Mapping[str, int]) -> set[int]:
        phases = {self.composition.phase(name) for name, amount in amounts.items() if amount > 0}
        return {phase for phase in phases if phase is not None}

    def reserve(self, trial: int, cost: Cost) -> bool:
        """Hold ``cost`` for a trial that is about to run, if it fits.

        Args:
            trial: A running trial keeps what it holds. A paused one holds ``cost`` instead of what
                it has charged so far.
            cost: What the trial may charge at most, from its first event on.
        Returns:
            False if it does not fit; nothing has changed then.
        """
        if trial in self._running:
            return True
        if not self.fits(cost, trial=trial):
            return False
        asked, held = self._asked(trial, cost), self._held(trial)
        self._phase = max(self._phases(asked), default=self._phase)
        self._running[trial] = asked
        self._add(asked, held)
        return True

    def settle(self, trial: int, actual: Cost) -> None:
        """Replace a trial's reservation by what it charged; the trial has ended or pauses.

        A trial's amount never falls below what was settled before.
        """
        before = self._settled.get(trial, self._nothing())
        charged: dict[str, int] = {
            name: max(_units(actual[name]), before[name]) for name in self._limits
        }
        self._add(charged, self._running.pop(trial, before))
        self._settled[trial] = charged

    def settled(self, trial: int) -> dict[str, float]:
        """Return what was settled for a trial, by limit; 0 before that."""
        return {name: _number(units) for name, units in self._held(trial).items()}

    def _held(self, trial: int | None) -> dict[str, int]:
        nothing = self._nothing()
        return nothing if trial is None else self._settled.get(trial, nothing)

    def _asked(self, trial: int | None, cost: Cost) -> dict[str, int]:
        held, more = self._held(trial), 1 + self.composition.slack
        return {name: max(_units(cost[name] * more), held[name]) for name in self._limits}

    def _add(self, new: Mapping[str, int], old: Mapping[str, int]) -> None:
        for name in self._limits:
            self._total[name] += new[name] - old[name]

    @property
    def committed(self) -> dict[str, float]:
        """What is reserved or charged, by limit."""
        return {name: _number(total) for name, total in self._total.items()}

    @property
    def remaining(self) -> dict[str, float]:
        """What can still be reserved, by limit; 0 where it is used up."""
        return {
            name: _number(max(limit - self._total[name], 0)) for name, limit in self._limits.items()
        }

    @property
    def is_over(self) -> bool:
        """True when more was charged than a limit allows: a trial passed its reservation."""
        return any(self._total[name] > limit for name, limit in self._limits.items())

    @property
    def num_in_flight(self) -> int:
        """Number of trials that hold a reservation."""
        return len(self._running)

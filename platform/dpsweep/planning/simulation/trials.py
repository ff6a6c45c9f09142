"""The trials of a simulation: planned as in a sweep, scored by a curve, timed by a formula."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.preflight import Preflight
from dpsweep.planning.simulation.curves import Curves
from dpsweep.privacy import rdp
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.events import Plan, PrivacyEvent
from dpsweep.privacy.events.multiset import event_curves
from dpsweep.privacy.randomness import public_seed
from dpsweep.privacy.rungs import num_skipped, rung_epsilons, rung_positions
from dpsweep.study.trial import TrialTask, report_interval

Array = NDArray[np.float64]

# Seconds of a step: a fixed part and one for each record of the batch, times a factor per trial.
_STEP_S, _RECORD_S, _SPREAD = 2e-3, 2e-5, 0.25


@dataclass(frozen=True)
class Planned:
    """A configuration as the simulator keeps it: what happens at each of its reports.

    Attributes:
        task: The admitted task; without a barrier without its plan, too, which may be long.
        positions: Plan position of each report: a grid point, a rung or the end.
        on_grid: Whether a policy without rungs has this report too.
        rungs: Rungs reached by then.
        skipped: Rungs that the first step passes.
        epsilons: Epsilon of training by then; 0 on public records, infinite without a guarantee.
        costs: Renyi cost of training by then, shape (reports, orders).
        taken: What training has taken by then of each limit of the study's composition, shape
            (reports, limits); None without one.
        seen: Score that the report shows.
        exact: Score without observation noise.
        step_s: Seconds of one step.
        sampling: How records enter the steps.
    """

    task: TrialTask
    positions: NDArray[np.int64]
    on_grid: NDArray[np.bool_]
    rungs: NDArray[np.int8]
    skipped: int
    epsilons: Array
    costs: Array
    taken: Array | None
    seen: Array
    exact: Array
    step_s: float
    sampling: str


class Planner:
    """Plans configurations; those of the random sampler once for all policies.

    Args:
        checked: Spec with the rungs at which reports are planned.
        curves: What configurations score.
        orders: Renyi orders at which costs are kept.
        composition: Of a composed study, or None.
    """

    def __init__(
        self,
        checked: Preflight,
        curves: Curves,
        orders: Array,
        composition: Composition | None = None,
    ) -> None:
        self._checked, self._curves, self._orders = checked, curves, orders
        self._composition = composition
        self._is_shared = checked.spec.search.sampler in ("random", "grid")
        self._kept: dict[int, Planned | BadInputError] = {}

    def plan(self, number: int, values: Mapping[str, Any]) -> Planned:
        """Return a configuration's reports.

        Raises:
            BadInputError: It has no plan within the budget.
        """
        if not self._is_shared:
            return self._plan(number, values)
        if number not in self._kept:
            try:
                self._kept[number] = self._plan(number, values)
            except BadInputError as error:
                self._kept[number] = error.with_traceback(None)
        outcome = self._kept[number]
        if isinstance(outcome, BadInputError):
            raise outcome
        return outcome

    def _plan(self, number: int, values: Mapping[str, Any]) -> Planned:
        return self.plan_task(self._checked.admit(number, values), values)

    def plan_task(self, task: TrialTask, values: Mapping[str, Any]) -> Planned:
        """Return the reports of a task.

        Args:
            task: The task.
            values: Of the searched parameters, by which its curve is made up.
        Raises:
            BadInputError: It is not what the study has declared.
        """
        spec = self._checked.spec
        every = report_interval(len(task.plan), spec.report.every_steps, spec.report.points)
        grid = {*range(every, len(task.plan), every), len(task.plan)}
        at_rungs: list[int] = []
        clock = None
        if task.is_private:
            accountant = spec.privacy.accountant
            clock = EpsilonClock(task.plan, delta=spec.privacy.delta, accountant=accountant)
            rungs = rung_epsilons(spec.rungs, spec.scheduler.rung_unit, clock)
            at_rungs = [task.barrier] if task.barrier else rung_positions(clock, rungs)
        positions = np.array(sorted(grid.union(at_rungs)), dtype=np.int64)
        if task.records == "public":
            epsilons = np.zeros(len(positions))
        elif clock is None:
            epsilons = np.full(len(positions), np.inf)
        else:
            epsilons = np.array([clock.epsilon_after(int(p)) for p in positions])
        refusal = task.refusal(self._composition)
        if refusal:
            raise BadInputError(refusal)
        costs = _costs(task, positions, self._orders)
        fractions = positions / max(len(task.plan), 1)
        seen, exact = self._curves.scores(
            task.trial,
            values,
            fractions=fractions,
            epsilons=epsilons,
            signal=self._checked.admission.signal(task.plan, task.hparams),
        )
        return Planned(
            task=task if task.barrier else _without_plan(task),
            positions=positions,
            on_grid=np.isin(positions, list(grid)),
            rungs=np.searchsorted(at_rungs, positions, side="right").astype(np.int8),
            skipped=0 if task.barrier else num_skipped(task.plan, at_rungs),
            epsilons=epsilons,
            costs=costs,
            taken=self._taken(task, positions, costs),
            seen=seen,
            exact=exact,
            step_s=self._step_s(task),
            sampling=task.sampling,
        )

    def _taken(self, task: TrialTask, positions: NDArray[np.int64], costs: Array) -> Array | None:
        """Return what training takes of each limit up to each position."""
        composition = self._composition
        if composition is None:
            return None
        if isinstance(composition, RenyiFilter):  # it is there already, and plans may be many
            return np.stack([costs[:, 0], np.zeros(len(costs))], axis=1)
        plans = [task.charges.slice(0, int(position)) for position in positions]
        return np.array([list(composition.cost(plan).values()) for plan in plans])

    def _step_s(self, task: TrialTask) -> float:
        """Return made-up seconds: longer for larger batches, different for each trial."""
        rates = [getattr(run.event, "sample_rate", 1.0) for run in task.plan.runs[-1:]]
        rate = rates[0] if rates else 0.0
        rng = np.random.default_rng(public_seed(self._checked.spec.seed, task.trial, "step time"))
        seconds = _STEP_S + _RECORD_S * rate * self._checked.info.num_private
        return seconds * float(np.exp(_SPREAD * rng.standard_normal()))


def _without_plan(task: TrialTask) -> TrialTask:
    return dataclasses.replace(task, hparams={}, plan=Plan(()), validation_plan=Plan(()))


def _costs(task: TrialTask, positions: NDArray[np.int64], orders: Array) -> Array:
    """Return the Renyi cost of training up to each position, at each order."""
    if task.records == "public" or not task.is_private:
        cost = 0.0 if task.records == "public" else np.inf
        return np.full((len(positions), len(orders)), cost)
    runs = task.plan.runs
    counts = np.array([run.count for run in runs])
    begins = np.cumsum(counts) - counts
    done = np.clip(positions[:, None] - begins, 0, counts)
    return np.asarray(done @ event_costs([run.event for run in runs], orders))


def event_costs(events: Sequence[PrivacyEvent], orders: Array) -> Array:
    """Return the Renyi cost of each event at each order, shape (len(events), len(orders))."""
    if len(orders) == 1 and len({type(event) for event in events}) == 1:
        return event_curves(events, orders)
    grid = rdp.orders_at(rdp.level_of(orders[-1]))
    return event_curves(events, grid)[:, np.searchsorted(grid, orders)]

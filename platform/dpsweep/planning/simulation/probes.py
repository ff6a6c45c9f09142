"""Probes of a simulation: the tasks of a sweep's own, with made-up scores."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.simulation.trials import Planned, Planner
from dpsweep.study.trial import TrialTask


@dataclass(frozen=True)
class PlannedProbes:
    """Probes and final run as tasks of a simulation (``dpsweep.search.probes.ProbePlans``).

    Attributes:
        probing: The runs.
        planner: Says what they report.
        planned: Where that is kept.
    """

    probing: Probing
    planner: Planner
    planned: MutableMapping[int, Planned]

    @property
    def points(self) -> tuple[float, ...]:
        """Values of the probes, ascending."""
        return self.probing.points

    @property
    def ratio(self) -> float:
        """Of one point's value to that before."""
        return self.probing.ratio

    def probe(self, number: int, value: float) -> TrialTask:
        """Return a probe as a task."""
        return self._kept(self.probing.probe(number, value), value)

    def final(self, value: float) -> TrialTask:
        """Return the final run as a task."""
        return self._kept(self.probing.final(value), value)

    def _kept(self, task: TrialTask, value: float) -> TrialTask:
        planned = self.planner.plan_task(task, {self.probing.parameter.name: value})
        self.planned[task.trial] = planned
        return planned.task

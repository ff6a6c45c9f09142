"""The final run of a simulation: what is delivered after a search on other records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.planning.preflight import Preflight
from dpsweep.planning.simulation.curves import Curves
from dpsweep.planning.simulation.trials import Array, Planned, Planner
from dpsweep.privacy.composition.base import Composition
from dpsweep.study.trial import TrialTask


class FinalRuns:
    """Plans the one run after a search: on the private records, or on those not searched on.

    Args:
        checked: The spec as it is checked for the whole study, its search on public records or not.
        planner: Plans runs on the records of the final run.
        composition: Of a composed study, or None.
    """

    def __init__(
        self, checked: Preflight, planner: Planner, composition: Composition | None
    ) -> None:
        self._checked, self._planner, self._composition = checked, planner, composition

    def refusal(self, trial: int, values: Mapping[str, Any]) -> str:
        """Say why a configuration would win in vain; empty if its final run has a place.

        Raises:
            BadInputError: It has no plan for its final run.
        """
        if self._composition is None:
            return ""
        return self._composition.refusal(self._task(trial, values).full_plan)

    def plan(self, trial: int, values: Mapping[str, Any]) -> tuple[TrialTask, Planned]:
        """Return the final run of the configuration that won, and what it reports.

        Args:
            trial: Its number.
            values: Of the configuration, as the search has drawn it; its curve is made up by them.
        """
        task = self._task(trial, values)
        return task, self._planner.plan_task(task, values)

    def _task(self, trial: int, values: Mapping[str, Any]) -> TrialTask:
        task = self._checked.admit(trial, values)
        return task if self._checked.rest is None else self._checked.final_of(trial, task)


def final_runs_of(
    checked: Preflight, curves: Curves, orders: Array, composition: Composition | None
) -> FinalRuns | None:
    """Return what plans the final run of a study; None: it has none, or its search plans it."""
    spec = checked.spec
    if spec.final_trial is not None or not spec.has_final_run:
        return None
    return FinalRuns(checked, Planner(checked.rest or checked, curves, orders), composition)

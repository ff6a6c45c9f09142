"""The charge of a selection, and the trials and final runs that are within it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.composition.recalibrated import covered
from dpsweep.privacy.events import Plan
from dpsweep.privacy.selection.bounds import TrialBound
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import SubsetBound
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.outside import is_outside


@dataclass(frozen=True)
class SelectionCharge:
    """The cost of the best of a random number of trials.

    Attributes:
        selection: Distribution of the number of trials.
        bound: What no trial exceeds; of a search on a secret part of the records, no final run
            either (``SubsetBound``).
        epsilon: Of the released winner, at the study's delta; with the search that found it.
        is_recalibrated: Whether the bound is on record and this version has another one for the
            same spec: plans may then take a trifle more noise to be within it (``covered``).
    """

    selection: Selection
    bound: TrialBound
    epsilon: float
    is_recalibrated: bool = False

    def admits(self, checked: Preflight, task: TrialTask) -> bool:
        """Say whether a trial, and the final run that it would have, are within the bound."""
        return self.admitted(checked, task) is not None

    def admitted(self, checked: Preflight, task: TrialTask) -> TrialTask | None:
        """Return a trial whose plan is within the bound, as its final run would be; None: none."""
        trial = self._within(checked, task, self.bound.covers)
        if trial is None or not isinstance(self.bound, SubsetBound):
            return trial
        return trial if self.has_final(checked, trial) else None

    def has_final(self, checked: Preflight, task: TrialTask) -> bool:
        """Say whether a trial of the search has a final run within the bound."""
        try:
            return self.final_of(checked, 0, task) is not None
        except BadInputError:
            return False

    def final_of(self, checked: Preflight, number: int, task: TrialTask) -> TrialTask | None:
        """Return the final run of a trial of the search, within the bound; None: it is above it.

        Raises:
            BadInputError: The configuration has no final run.
        """
        assert isinstance(self.bound, SubsetBound)
        planner = checked.with_final(self.bound.final_epsilon)
        return self._within(checked, planner.final_of(number, task), self.bound.covers_final)

    def _within(
        self, checked: Preflight, task: TrialTask, covers: Callable[[Plan], bool]
    ) -> TrialTask | None:
        """Return a task whose plan is covered; its epsilon may then be a trifle too large."""
        if covers(task.full_plan):
            return task
        if not self.is_recalibrated or is_outside(checked.methods[task.method]):
            return None
        plan = covered(task.plan, lambda other: covers(replace(task, plan=other).full_plan))
        return None if plan is None else replace(task, plan=plan)

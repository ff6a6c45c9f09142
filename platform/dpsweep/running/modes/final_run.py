"""The final run of a study: the configuration that won, run once and never again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsweep.planning.preflight import Preflight
from dpsweep.running.ending import Ending
from dpsweep.running.features import prefetch
from dpsweep.running.modes.launch import Launch
from dpsweep.running.recovery import mend_tasks
from dpsweep.running.stage import Stage
from dpsweep.search.sources import TaskList
from dpsweep.study.journal import TrialView
from dpsweep.study.trial import TrialState, TrialTask
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.supplies import Supplies


@dataclass(frozen=True)
class FinalRun:
    """How the final run of a study is run, by whichever launch.

    Attributes:
        launch: The study's.
        checked: What admits it.
        data: The records that it trains on.
        make_stage: From its task and what it is handed to what runs it; None: a plain ``Stage``.
    """

    launch: Launch
    checked: Preflight
    data: SweepData
    make_stage: Callable[[TrialTask, Supplies], Stage] | None = None

    def begin(self, task: TrialTask) -> Ending:
        """Admit the run, whose cost is reserved, and run it to its end."""
        stage = self._stage(task)
        stage.admit(task)
        return self._execute(stage, task)

    def run_admitted(self, task: TrialTask) -> Ending:
        """Run it to its end; this launch has admitted it."""
        return self._execute(self._stage(task), task)

    def go_on(self, final: TrialView) -> Ending:
        """Continue the run that an earlier launch admitted, unless it has ended."""
        launch, study = self.launch, self.launch.study
        if final.state is not TrialState.RUNNING or launch.ledger.has_ended(final.trial):
            return Ending("finished", "the final run has ended; it is never repeated")
        if mend_tasks(self.checked, study, [final.trial], launch.observer):
            self._plain_stage(launch.supplies).end_lost(final.trial)
            return Ending("finished", "the final run is lost; it is never repeated")
        task = study.files.task(final.trial)
        stage = self._stage(task)
        stage.say_continuing(task.trial, " the final run")
        stage.admit(task)
        return self._execute(stage, task)

    def _stage(self, task: TrialTask) -> Stage:
        launch = self.launch
        features = prefetch(self.checked, self.data, launch.target, launch.observer, tasks=[task])
        supplies = replace(launch.supplies, feature_root=features)
        if self.make_stage is None:
            return self._plain_stage(supplies)
        return self.make_stage(task, supplies)

    def _plain_stage(self, supplies: Supplies) -> Stage:
        policy = self.launch.fifo()
        return self.launch.stage(self.checked, self.data, supplies, policy, is_last=True)

    def _execute(self, stage: Stage, task: TrialTask) -> Ending:
        state = stage.execute(TaskList([task]), self.launch.target)
        return Ending(state, "the final run has ended")

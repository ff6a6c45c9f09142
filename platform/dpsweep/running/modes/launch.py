"""A launch: all that a mode works with, and the trials that an earlier launch left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dpsweep.cluster.base import ClusterTarget
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.costs.charge import SelectionCharge
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.composition.base import Composition
from dpsweep.running.handing_on import HandingOn
from dpsweep.running.recovery import mend_tasks
from dpsweep.running.stage import Stage
from dpsweep.schedulers import POLICIES
from dpsweep.schedulers.base import TrialPolicy
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import MOVING, TrialState, TrialTask
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.supplies import Supplies


@dataclass(frozen=True)
class Launch:
    """Everything a mode works with.

    Attributes:
        checked: The checked spec.
        study: Open for writing.
        ledger: The study's ledger.
        composition: Of a composed study.
        selection: Of a study with accounting select; its charge is on the ledger.
        num_draws: Number of trials drawn for this launch of a selection; the first launch's holds.
        data: The records.
        supplies: What the study has prepared for its trials besides.
        observer: Who watches.
        target: Where trials run, connected.
        hand_on: Asks the process of the last trial for the best model.
        before_s: Seconds that earlier launches ran.
        since: When this one began, by ``time.monotonic``.
    """

    checked: Preflight
    study: Study
    ledger: StudyLedger
    composition: Composition | None
    selection: SelectionCharge | None
    num_draws: int
    data: SweepData
    supplies: Supplies
    observer: Observer
    target: ClusterTarget
    hand_on: HandingOn | None = None
    before_s: float = 0.0
    since: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float | None:
        """When the search starts no further trial, by ``time.monotonic``; None: at no time.

        Pauses between launches are none of its time.
        """
        max_time = self.checked.spec.search.max_time
        return None if max_time is None else self.since + max_time - self.before_s

    def policy(self) -> TrialPolicy:
        """Return a fresh policy of the spec's scheduler."""
        spec = self.checked.spec
        scheduler = spec.scheduler.model_copy(update={"rungs": spec.rungs})
        policy: TrialPolicy = POLICIES[spec.scheduler.type].from_spec(
            scheduler, metric=spec.search.metric, maximize=spec.search.mode == "max"
        )
        return policy

    def fifo(self) -> TrialPolicy:
        """Return a policy that lets trials run to their ends."""
        policy: TrialPolicy = POLICIES["fifo"].from_spec(
            self.checked.spec.scheduler, metric="", maximize=True
        )
        return policy

    def stage(
        self,
        checked: Preflight,
        data: SweepData,
        supplies: Supplies,
        policy: TrialPolicy,
        *,
        is_last: bool = False,
    ) -> Stage:
        """Return a stage of this study; ``is_last`` if its best trial is the study's."""
        return Stage(
            checked,
            self.study,
            self.ledger,
            composition=self.composition,
            data=data,
            supplies=supplies,
            observer=self.observer,
            policy=policy,
            hand_on=self.hand_on if is_last else None,
        )


def mend(launch: Launch, stage: Stage, checked: Preflight, *, first: int = 0) -> None:
    """Mend the tasks of a search's trials; end those whose files are lost.

    Args:
        launch: The study's.
        stage: Theirs.
        checked: What admits them.
        first: Number of the first trial of the search.
    """
    study = launch.study
    searched = [number for number in sorted(study.view.trials) if number >= first]
    for number in mend_tasks(checked, study, searched, launch.observer):
        if study.view.trials[number].state in MOVING:
            stage.end_lost(number)


def continued(launch: Launch, stage: Stage) -> list[TrialTask]:
    """Return the tasks that an earlier launch left running, each admitted anew."""
    study, ledger = launch.study, launch.ledger
    trials = sorted(study.view.trials.items())
    unfinished = [study.files.task(n) for n, trial in trials if trial.state is TrialState.RUNNING]
    for task in list(unfinished):
        if not ledger.has_ended(task.trial) and task.reserve(ledger):
            stage.say_continuing(task.trial)
            stage.admit(task)
        else:  # a crash hit between the end of its reservation and that of the trial
            stage.end_unreserved(task.trial)
            unfinished.remove(task)
    return unfinished

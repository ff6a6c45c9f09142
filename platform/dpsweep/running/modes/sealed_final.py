"""The final run after a search on a secret part of the records: the one thing that is released."""

from __future__ import annotations

from dpsweep.foundation.errors import StudyError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.planning.costs.recorded import other_version
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.composition.declared import DeclaredComposition, declared_classes
from dpsweep.privacy.selection.on_subset import SubsetBound
from dpsweep.running.ending import Ending
from dpsweep.running.modes.final_run import FinalRun
from dpsweep.running.modes.launch import Launch
from dpsweep.running.stage import Stage
from dpsweep.study.journal import TrialView
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.supplies import Supplies

#: Its number in the study, which knows no other trial: one after those of the search would tell how
#: many there were.
NUMBER = 0


class FinalStage(Stage):
    """Runs the final run: no more of it than its plan.

    Guarantees:
        No event is charged that is not in its plan, however often a crash has it begin a step
        again: what lost steps have cost, it ends earlier by. So whatever it has charged is part of
        the plan that the study's bound covers, and not of another one of equal epsilon.

    Args:
        launch: The study's.
        task: The final run.
        supplies: What it is handed.
        tune_path: Where Tune may leave its traces, whose times tell how long the search took.
    """

    def __init__(
        self, launch: Launch, task: TrialTask, supplies: Supplies, tune_path: FilePath | None = None
    ) -> None:
        checked = final_preflight(launch)
        budget, classes = checked.budget, declared_classes([[(task.full_plan, 1)]])
        super().__init__(
            checked,
            launch.study,
            launch.ledger,
            composition=DeclaredComposition(
                classes, budget.target_epsilon, budget.delta, budget.target_epsilon
            ),
            data=launch.data,
            supplies=supplies,
            observer=launch.observer,
            policy=launch.fifo(),
        )
        self.tune_path = tune_path


def _bound(launch: Launch) -> SubsetBound:
    assert launch.selection is not None
    assert isinstance(launch.selection.bound, SubsetBound)
    return launch.selection.bound


def _state_all(launch: Launch) -> None:
    """Let all that is said of the final run state the epsilon of the search and itself together."""
    assert launch.selection is not None
    launch.study.stated_epsilon = launch.selection.epsilon


def final_preflight(launch: Launch) -> Preflight:
    """Return what admits the final run: on all records, within what the search leaves."""
    checked = launch.checked.with_final(_bound(launch).final_epsilon)
    assert checked.rest is not None
    return checked.rest


def refuse_other_bound(launch: Launch, stage: Stage, num_trials: int) -> None:
    """Refuse to go on with a selection that another version began, if its bound is passed.

    That is looked at before trials run: those that will be drawn, from the sample of the space, all
    of it, as each is to be drawn from one distribution; and the final run of each that has begun,
    whatever became of it. It tells nothing of what they have shown.

    Args:
        launch: The study's.
        stage: Of the sealed trials.
        num_trials: The drawn number.
    Raises:
        StudyError: A draw would not be within the bound, or the final run of a trial is not.
    """
    charge, checked, trials = launch.selection, launch.checked, stage.study.view.trials
    if charge is None or not charge.is_recalibrated:
        return
    is_covered = all(charge.admits(checked, task) for task in checked.sample)
    is_covered |= len(trials) >= num_trials
    begun = stage.ledger.admitted | set(trials)
    for number in sorted(begun) if checked.rest is not None else ():
        try:
            task = stage.study.files.task(number)
        except StudyError:  # lost as well: it ends, or another is drawn for it
            continue
        is_covered &= charge.has_final(checked, task)
    if not is_covered:
        raise other_version("computed the bound on what this study runs")


def begin_final(launch: Launch, sealed: Study, winner: TrialView) -> TrialTask:
    """Freeze the best configuration of a finished search and write down that it is run.

    It is a function of the sealed study, which ends with it, so a launch that dies on the way is
    followed by one that freezes the same. Of the search nothing else leaves the sealed study.

    Raises:
        SweepError: Its plan is not within what the study was charged for.
    """
    assert launch.selection is not None
    task = launch.selection.final_of(launch.checked, NUMBER, sealed.files.task(winner.trial))
    if task is None:  # its draw was refused then
        raise SweepError(
            "the final run does not fit into what is kept for it; nothing is released",
            fix="do not trust this study before the cause is known",
        )
    task.reserve(launch.ledger)
    dataset_ledger = launch.checked.spec.privacy.dataset_ledger
    if dataset_ledger is not None:  # so that an older copy of the study cannot run it once more
        DatasetLedger(dataset_ledger).note_trial(launch.ledger.study_id, NUMBER + 1)
    _state_all(launch)
    FinalStage(launch, task, launch.supplies).admit(task)
    launch.observer.on_message(
        "the search has ended; the best configuration, carried over, is run once on all private "
        "records"
    )
    return task


def run_final(launch: Launch, task: TrialTask, tune_path: FilePath) -> Ending:
    """Run a final run that this launch has admitted to its end.

    Args:
        launch: The study's.
        task: The run.
        tune_path: A folder that is erased when the study has finished.
    """
    return _final_run(launch, tune_path).run_admitted(task)


def continue_final(launch: Launch, final: TrialView, tune_path: FilePath) -> Ending:
    """Continue the final run that an earlier launch began, unless it has ended.

    It is never repeated, and nothing is searched any more.
    """
    _state_all(launch)
    return _final_run(launch, tune_path).go_on(final)


def _final_run(launch: Launch, tune_path: FilePath) -> FinalRun:
    def stage(task: TrialTask, supplies: Supplies) -> Stage:
        return FinalStage(launch, task, supplies, tune_path)

    return FinalRun(launch, final_preflight(launch), launch.data, stage)

"""How a study runs under each accounting mode; docs/search_cost.md says what each may claim.

- ``composed`` and ``unaccounted``: one search on the private records. Composed bounds all of it by
  a filter or by what it has declared; unaccounted bounds each trial only, and says so. With
  ``search.on`` composed searches on a part of them, and runs the winner once on the others.
- ``public``: the search trains and scores on public records; then the winner's configuration is
  frozen and run once on the private ones.
- ``select``: a random number of independent trials, of which the best is released
  (``dpsweep.running.modes.sealed``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpsweep.foundation.errors import InfeasibleBudgetError, StudyError, SweepError
from dpsweep.foundation.logs import read_log
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.modes import UNACCOUNTED
from dpsweep.results.coverage import meaning_of_each
from dpsweep.results.origins import charged_starts, find_starts, unfinished_starts
from dpsweep.running.ending import Ending
from dpsweep.running.features import prefetch
from dpsweep.running.modes.final_run import FinalRun
from dpsweep.running.modes.launch import Launch, continued, mend
from dpsweep.running.recovery import mend_tasks
from dpsweep.search.sources import SearchSource, TaskList, known_trials
from dpsweep.search.suggestions import Suggestions
from dpsweep.study.journal import TrialView
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import SweepData


def run_search(launch: Launch) -> Ending:
    """Search on the private records, after the start where there is one."""
    if launch.checked.spec.start is not None:
        ending = _run_start(launch)
        if ending.state != "finished":
            return ending
        spec, files = launch.checked.spec, launch.study.files
        checked = replace(launch.checked, given_starts=charged_starts(spec, files))
        supplies = replace(launch.supplies, starts=find_starts(spec, files))
        launch = replace(launch, checked=checked, supplies=supplies)
    if launch.checked.rest is not None:
        return _search_on_a_part(launch, launch.checked, launch.checked.rest)
    return _search(launch, launch.checked, launch.data)


def _run_start(launch: Launch) -> Ending:
    """Run, or continue, the private runs that trials start from.

    Raises:
        SweepError: One of them failed, or does not fit into the study's budget.
    """
    study, tasks = launch.study, launch.checked.start_tasks
    left = unfinished_starts(study.view, tasks)
    if not left:
        return Ending("finished")
    stage = launch.stage(launch.checked, launch.data, launch.supplies, launch.fifo())
    begun = [task.trial for task in left if task.trial in study.view.trials]
    mend_tasks(launch.checked, study, begun, launch.observer)
    todo = []
    for task in left:
        if task.trial in begun:
            task = study.files.task(task.trial)
            stage.say_continuing(task.trial, " the start")
        if not task.reserve(launch.ledger):
            raise SweepError(
                f"run {task.trial} of the start does not fit into the study's budget",
                fix="raise privacy.study_epsilon in a new study, or lower start.runs",
            )
        stage.admit(task)
        todo.append(task)
    state = stage.execute(TaskList(todo), launch.target)
    if state == "finished":
        unfinished_starts(study.view, tasks)  # refuses a run that failed
    return Ending(state)


def _search(launch: Launch, checked: Preflight, data: SweepData) -> Ending:
    """Run the sampler's suggestions under the scheduler, on the given records."""
    study, files, spec = launch.study, launch.study.files, checked.spec
    features = prefetch(checked, data, launch.target, launch.observer)
    supplies = replace(launch.supplies, feature_root=features)
    # A search on other records is followed by a final run.
    is_last = data is launch.data
    stage = launch.stage(checked, data, supplies, launch.policy(), is_last=is_last)
    stage.replay(first=spec.num_starts)
    mend(launch, stage, checked, first=spec.num_starts)
    suggestions = Suggestions(
        spec,
        checked.space,
        path=files.optuna,
        known=known_trials(
            study.view, read_log(files.journal), spec.search.compared_by, first=spec.num_starts
        ),
        meaning=lambda: meaning_of_each(
            spec, UNACCOUNTED if study.view.downgraded else spec.privacy.mode
        ),
        on_message=launch.observer.on_message,
    )
    unfinished = continued(launch, stage)

    def plan(trial: int, values: Mapping[str, Any]) -> TrialTask:
        if trial in study.view.trials:  # never: the study of Optuna's was compared with the journal
            raise StudyError(f"trial {trial} was suggested twice")
        task = checked.admit(trial, values)
        composition = launch.composition
        refusal = task.refusal(composition)
        if refusal:
            raise InfeasibleBudgetError(refusal, fix="or use privacy.composition: filter")
        if composition is not None and checked.rest is not None:  # else it would win in vain
            refusal = composition.refusal(checked.final_of(trial, task).full_plan)
            if refusal:
                raise InfeasibleBudgetError(refusal)
        return task

    source = SearchSource(
        suggestions,
        plan=plan,
        ledger=launch.ledger,
        admit=stage.admit,
        refuse=stage.refuse,
        num_refused=lambda: study.view.num_infeasible,
        unfinished=unfinished,
        num_admitted=len(study.view.trials) - spec.num_starts,
        num_trials=checked.num_trials,
        deadline=launch.deadline,
    )
    state = stage.execute(source, launch.target)
    suggestions.keep()
    return Ending(state, source.end_reason)


def run_public(launch: Launch) -> Ending:
    """Search on the public records, then run the frozen winner once on the private ones."""
    study, observer = launch.study, launch.observer
    final = next((t for t in study.view.trials.values() if t.records == "private"), None)
    if final is not None:
        return FinalRun(launch, launch.checked, launch.data).go_on(final)
    with_test = launch.checked.spec.data.test.visibility == "public"
    data = launch.data.for_public_search(with_test=with_test)
    ending = _search(launch, launch.checked.for_public_search(), data)
    if ending.state != "finished":
        return ending
    winner = study.view.best(maximize=launch.checked.spec.search.mode == "max")
    if winner is None:
        return Ending("finished", "no trial of the public search has finished")
    number = max(study.view.trials) + 1
    task = launch.checked.admit(number, _frozen(study, winner))
    observer.on_message(
        f"the configuration of trial {winner.trial} is frozen; trial {number} runs it once on "
        "the private records"
    )
    task.reserve(launch.ledger)
    return FinalRun(launch, launch.checked, launch.data).begin(task)


def _search_on_a_part(launch: Launch, checked: Preflight, rest: Preflight) -> Ending:
    """Search on a part of the private records, then run the winner once on all others.

    The final run is a function of what the search has released. Its number is on the ledger before
    anything of it runs, and from then on nothing is searched any more: a launch that dies in
    between is followed by one that reserves the same run under the same number.

    Raises:
        SweepError: The final run does not fit into what was kept for it.
    """
    study, ledger = launch.study, launch.ledger
    final = next((t for t in study.view.trials.values() if t.records == "rest"), None)
    if final is not None:
        return FinalRun(launch, rest, launch.data.for_final_run()).go_on(final)
    number = ledger.final_run
    if number is None:
        ending = _search(launch, checked, launch.data.for_search())
        if ending.state != "finished":
            return ending
        number = max({*study.view.trials, *ledger.admitted}, default=-1) + 1
    winner = study.view.best(maximize=checked.spec.search.mode == "max")
    if winner is None:
        return Ending("finished", "no trial of the search has finished, and there is no final run")
    task = checked.final_of(number, checked.admit(winner.trial, _frozen(study, winner)))
    if not task.reserve(ledger):
        raise SweepError(
            f"trial {number}, the final run, does not fit into what is kept for it",
            because=f"it is the configuration of trial {winner.trial}, carried over",
        )
    launch.observer.on_message(
        f"the configuration of trial {winner.trial}, carried over, is run once more: trial {number}"
        ", on the private records that the search has not read"
    )
    return FinalRun(launch, rest, launch.data.for_final_run()).begin(task)


def _frozen(study: Study, winner: TrialView) -> Mapping[str, Any]:
    """Return the configuration of a trial: its task's, or the journal's where that is lost."""
    try:
        task = study.files.task(winner.trial)
    except StudyError:
        return winner.hparams
    return {"method": task.method, **task.hparams}

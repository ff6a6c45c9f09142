"""Recovery of trials whose files were deleted or damaged: a launch mends them, or says so.

Ledgers and the journal are never mended: what they say is what a claim rests on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dpsweep.foundation.errors import StudyError, SweepError
from dpsweep.foundation.file_paths import FilePath, set_aside
from dpsweep.ledgers.admission import admission, plan_digest
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.modes import PUBLIC
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.execution.checkpoint_files import find_resumption

#: Why a trial whose files are lost has failed.
LOST = "its configuration or its models are lost; what it has spent stays spent, without a model"


def mend_tasks(
    checked: Preflight, study: Study, trials: Iterable[int], observer: Observer
) -> set[int]:
    """Write every ``trial.json`` anew that is damaged and can be had again; name the others.

    The journal has the configuration; its plan is computed as at admission, and is the trial's if
    it has the SHA-256 that the study's ledger recorded then. The folder of a trial that has
    reported is not made anew: without it there is no model to go on with.

    Args:
        checked: What admitted these trials.
        study: Open for writing.
        trials: Numbers of admitted trials.
        observer: Hears what was done, a line each.
    Returns:
        The trials whose task stays lost.
    """
    lost = set()
    for number in trials:
        try:
            study.files.task(number)
        except StudyError as damage:
            directory, view = study.files.trial(number), study.view.trials[number]
            task = None
            if view.step == 0 or find_resumption(directory).found is not None:
                task = _planned_again(checked, study, number)
            if task is None:
                lost.add(number)
                continue
            _make_way(directory)
            study.write_task(task)
            observer.on_message(
                f"trial {number}: {damage.message}; it is written anew from the journal, with the "
                "plan that the study's ledger knows"
            )
    return lost


def _planned_again(checked: Preflight, study: Study, number: int) -> TrialTask | None:
    """Return the task of a trial from the journal, if it has the plan that was admitted."""
    record = admission(study.files.ledger, number) or {}
    starts = {task.trial: task for task in checked.start_tasks}
    hparams = study.view.trials[number].hparams
    for each in _admitting(checked):
        try:
            task = starts.get(number) or _planned(each, number, hparams)
        except (SweepError, KeyError):
            continue
        # Earlier versions did not write the code of own networks down.
        for one in (task, dataclasses.replace(task, code="")):
            is_its_plan = record.get("plan_sha256") == plan_digest(one.full_plan)
            if is_its_plan and record.get("task_sha256", one.digest) == one.digest:
                return one
    return None


def _admitting(checked: Preflight) -> Iterator[Preflight]:
    """Yield what may have admitted a trial: of a search, or of a final run on other records."""
    yield checked
    if checked.rest is not None:
        yield checked.rest
    if checked.spec.privacy.accounting == PUBLIC.name and checked.records != "public":
        yield checked.for_public_search()


def _planned(checked: Preflight, number: int, hparams: Mapping[str, Any]) -> TrialTask:
    if checked.spec.final_trial is None:
        return checked.admit(number, hparams)
    probing = Probing(checked)
    return probing.task(number, hparams[probing.parameter.name])


def _make_way(directory: FilePath) -> None:
    """Move what is damaged out of the way of a trial's files."""
    if directory.exists() and not directory.is_dir():
        set_aside(directory)
    if (directory / "trial.json").exists():
        set_aside(directory / "trial.json")

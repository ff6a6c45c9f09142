"""Delivery to the tracking store at the end of a launch: the last events and the best model."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dpsweep.foundation.errors import NothingWithinBudgetError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.process.interrupts import held
from dpsweep.foundation.words import counted
from dpsweep.planning.preflight import Preflight
from dpsweep.results.layers import finished_trials, save_layers_figure
from dpsweep.results.origins import supplies_of
from dpsweep.results.pictures.confusion import MAX_CLASSES
from dpsweep.results.study import SweepResult
from dpsweep.running.entries import label_of
from dpsweep.running.gallery import keep_shown, public_part
from dpsweep.running.handing_on import HandedOn
from dpsweep.study.events import ModelLogged
from dpsweep.study.study import Observer, Study
from dpsweep.tracking import Spool
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.execution.finished.predictions import show
from dpsweep.trainables.hooks import Pictures

# As long as events arrive; a store that takes none for QUIET_S is not waited for.
FLUSH_S, FLUSH_STEP_S, QUIET_S = 120.0, 5.0, 25.0
FLUSH_URGENT_S = 2.0  # where Ray ends this process soon


def log_best_model(
    checked: Preflight,
    study: Study,
    spool: Spool,
    data: SweepData,
    observer: Observer,
    *,
    on_shown: Callable[[], None] = lambda: None,
    taken: Callable[[int], HandedOn | None] = lambda trial: None,
) -> None:
    """Log the best trial's model to the tracking store, once; later launches try again.

    Every logged model gets the label of what may be claimed of it now. With a new one go the figure
    of ``dpsweep layers`` and what the method draws, where there are public records to draw them
    from.

    Args:
        checked: The checked spec.
        study: The study, whose trials have ended.
        spool: Of the tracking store.
        data: The study's records.
        observer: Hears of what cannot be had.
        on_shown: Called when what the model predicts is in the study's files, if it gets there.
        taken: Returns what a trial's process has handed on of its model; of others, it is rebuilt
            here.
    Raises:
        KeyboardInterrupt: Ctrl-C has come meanwhile; a model that was being logged is logged.
    """
    if not spool.is_enabled:
        return
    spool.release()  # of a selection nothing is left but its winner
    result = SweepResult.of(study)
    try:
        best = result.best().trial_id
    except NothingWithinBudgetError:
        return
    handed = taken(best)
    if best not in study.view.model_uris and handed is None:
        _finished()  # while the store catches up
    if not deliver(spool, observer, is_last=False):
        if best not in study.view.model_uris:
            observer.on_message(
                "the best model is not in the tracking store: the same command logs it, once the "
                "store takes it"
            )
        return
    # A claim that does not hold any more leaves every model that somebody may have registered.
    for trial in study.view.trials if result.claims.downgraded else study.view.model_uris:
        spool.label_model(trial, label_of(result, trial))
    if best in study.view.model_uris and spool.has_model(best):
        return
    _log(checked, study, spool, data, observer, on_shown, result, handed)


@held()  # a step of seconds, which imports MLflow's writers
def _log(
    checked: Preflight,
    study: Study,
    spool: Spool,
    data: SweepData,
    observer: Observer,
    on_shown: Callable[[], None],
    result: SweepResult,
    handed: HandedOn | None,
) -> None:
    """Log the model of the best trial, the figures of it, and what it predicts."""
    best = result.best().trial_id
    figures: list[FilePath] = []

    def add(make: Callable[[], list[FilePath]]) -> None:
        try:
            figures.extend(make())
        except SweepError as error:
            observer.on_message(f"not all of its figures are in the tracking store: {error}")

    directory, model, example = study.files.trial(best), None, None
    try:
        task = study.files.task(best)
        supplies = supplies_of(checked.spec, study.files, study.view)
        shared: Any = {"study_seed": checked.spec.seed, "data": data, "supplies": supplies}
        if handed is None:
            model, example = _finished().export_model(directory, task, **shared)
    except SweepError as error:  # a task, a checkpoint or features that can no longer be had
        observer.on_message(f"the best model is not in the tracking store: {error}")
        return
    if handed is not None:
        model = handed.graph
        figures += handed.figures
    elif (part := public_part(study.spec)) is not None:
        limits: Any = {"part": part, "max_classes": MAX_CLASSES}
        add(lambda: keep_shown(study, best, show(directory, task, model, data, **limits)))
    on_shown()
    uri = spool.log_model(best, model, example, label_of(result, best))
    if uri is None:
        return
    add(lambda: save_layers_figure(checked.spec, study.files, task, data, supplies))
    if issubclass(TRAINABLES[task.method], Pictures):
        say = observer.on_message
        add(lambda: _finished().draw_pictures(directory, task, **shared, say=say))
    study.write(ModelLogged(best, uri, tuple(map(str, figures))))


@held()  # torch calls Python from C++ while it is imported
def _finished() -> ModuleType:
    return finished_trials()


def deliver(spool: Spool, observer: Observer, *, is_last: bool = True) -> bool:
    """Wait for the tracking store to catch up with the journal, unless it is down or held.

    Args:
        spool: Of the tracking store.
        observer: Hears of events that are left over; once, by the ``is_last`` call of a launch.
        is_last: False if another call follows.
    """
    if spool.is_held:
        return False
    deadline = time.monotonic() + FLUSH_S
    if spool.flush(timeout_s=FLUSH_STEP_S):
        return True
    lag, moved = spool.lag(), time.monotonic()
    if lag and not spool.is_down:
        observer.on_message(f"waiting for the tracking store: {counted(lag, 'event')} to deliver")
    while not spool.is_down and time.monotonic() < min(deadline, moved + QUIET_S - FLUSH_STEP_S):
        if spool.flush(timeout_s=FLUSH_STEP_S):
            return True
        if spool.lag() < lag:
            lag, moved = spool.lag(), time.monotonic()
    lag = spool.lag()
    if lag and is_last:
        why = f" ({reason})" if (reason := spool.why) else ""
        observer.on_message(
            f"not in the tracking store yet: {counted(lag, 'event')}{why}; nothing is lost: the "
            "same command delivers what is missing, once the store takes it"
        )
    return False

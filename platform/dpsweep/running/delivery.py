"""Delivery to the tracking store at the end of a launch: the last events and the best model."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from dpsweep.foundation.errors import NothingWithinBudgetError, SweepError
from dpsweep.foundation.words import counted
from dpsweep.planning.preflight import Preflight
from dpsweep.results.layers import save_layers_figure
from dpsweep.results.origins import find_starts, weights_path
from dpsweep.results.study import SweepResult
from dpsweep.running.entries import model_label
from dpsweep.study.events import ModelLogged
from dpsweep.study.study import Observer, Study
from dpsweep.tracking import Spool
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.execution.finished import draw_pictures, export_model

FLUSH_S, FLUSH_STEP_S = 120.0, 5.0
FLUSH_URGENT_S = 2.0  # where Ray ends this process soon


def log_best_model(
    checked: Preflight, study: Study, spool: Spool, data: SweepData, observer: Observer
) -> None:
    """Log the best trial's model to the tracking store, once; later launches try again.

    Every logged model gets the label of what may be claimed of it now. With a new one go the figure
    of ``dpsweep layers`` and what the method draws, where there are public records to draw them
    from.
    """
    if not spool.is_enabled:
        return
    try:
        best = SweepResult.of(study).best().trial_id
    except NothingWithinBudgetError:
        return
    if not deliver(spool, observer):
        return
    for trial in study.view.model_uris:
        spool.label_model(trial, model_label(study, trial))
    if best in study.view.model_uris and spool.has_model(best):
        return
    try:
        task = study.files.task(best)
        data = dataclasses.replace(
            data,
            feature_root=checked.spec.storage.features_path,
            pretrained=weights_path(checked.spec, study.view),
            starts=find_starts(checked.spec, study.files),
        )
        model, example = export_model(
            study.files.trial(best), task, study_seed=checked.spec.seed, data=data
        )
    except SweepError as error:  # a task, a checkpoint or features that can no longer be had
        observer.on_message(f"the best model is not in the tracking store: {error}")
        return
    uri = spool.log_model(best, model, example, model_label(study, best))
    if uri is None:
        return
    figures: list[Path] = []
    try:
        figure = save_layers_figure(checked.spec, study.files, task, data)
        figures += [figure] if figure else []
        figures += draw_pictures(
            study.files.trial(best), task, study_seed=checked.spec.seed, data=data
        )
    except SweepError as error:
        observer.on_message(f"not all of its figures are in the tracking store: {error}")
    study.write(ModelLogged(best, uri, tuple(map(str, figures))))


def deliver(spool: Spool, observer: Observer) -> bool:
    """Wait for the tracking store to catch up with the journal, unless it is down."""
    deadline = time.monotonic() + FLUSH_S
    if spool.flush(timeout_s=FLUSH_STEP_S):
        return True
    observer.on_message(
        f"waiting for the tracking store: {counted(spool.lag(), 'event')} to deliver"
    )
    while not spool.is_down and time.monotonic() < deadline:
        if spool.flush(timeout_s=FLUSH_STEP_S):
            return True
    observer.on_message(
        f"not in the tracking store yet: {counted(spool.lag(), 'event')}; nothing is lost: run the "
        "same command again to deliver what is missing"
    )
    return False

"""A finished trial: its model, its pictures, and figures of its noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import CheckpointError, ModelError, described, is_failure, is_own
from dpsweep.foundation.file_paths import FilePath
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.execution.private_report import PRIVATE_FOLDER
from dpsweep.trainables.execution.trial_data import records_for
from dpsweep.trainables.gradients.layer_noise import NoiseFigures
from dpsweep.trainables.hooks import NoiseFigured, OnFrozenFeatures, Pictures
from dpsweep.trainables.method import Method, RunContext
from dpsweep.trainables.networks.own_models import refuse_changed

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData

_T = TypeVar("_T")


def export_model(
    directory: FilePath,
    task: TrialTask,
    *,
    study_seed: int,
    data: SweepData,
    supplies: Supplies = NO_SUPPLIES,
) -> tuple[torch.nn.Module, np.ndarray]:
    """Return a trial's best model on the CPU, and zeros in the shape of its input.

    Guarantees:
        The model is what DP training released; the example input is no record of the data.

    Raises:
        CheckpointError: The trial has no intact best checkpoint.
        ModelError: The method has no model to export.
    """
    instance, info = _best_of(directory, task, study_seed, data, supplies)
    kind = np.float32 if info.text is None else np.int64
    model = _asked(task.method, "export", instance.export)
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"export of method {task.method} has returned {type(model).__name__}",
            fix="let it return the trained torch.nn.Module, on the CPU",
        )
    return model.eval(), np.zeros((1, *info.input_shape), dtype=kind)


def _asked(method: str, name: str, function: Callable[[], _T]) -> _T:
    """Return what a method of another package is asked for; its errors are told in a line."""
    try:
        return function()
    except BaseException as error:
        # Records are at hand, and words of others may quote one.
        if is_own(error) or not is_failure(error):
            raise error from None
        raise ModelError(
            f"{name} of method {method} fails",
            because=described(error),
            fix="correct it, and run the same command again: the trials are kept",
        ) from None


def draw_pictures(
    directory: FilePath,
    task: TrialTask,
    *,
    study_seed: int,
    data: SweepData,
    supplies: Supplies = NO_SUPPLIES,
    say: Callable[[str], None] = lambda text: None,
) -> list[FilePath]:
    """Let a trial's method draw what it has to show, from public records, beside its checkpoints.

    Files elsewhere are not returned, nor is the private report: what is returned is sent on.

    Args:
        directory: Of the trial.
        task: A trial of a method that has ``Pictures``.
        study_seed: Seed of the study.
        data: The study's records.
        supplies: What it has besides.
        say: Hears of what else the method has returned.
    Raises:
        CheckpointError: The trial has no intact best checkpoint.
        ModelError: The method cannot draw them, or returns no list.
    """
    method = _best_of(directory, task, study_seed, data, supplies)[0]
    assert isinstance(method, Pictures)
    drawn: Any = _asked(task.method, "pictures", lambda: method.pictures(directory))
    if not isinstance(drawn, (list, tuple)):
        raise ModelError(
            f"pictures of method {task.method} has returned {type(drawn).__name__}",
            fix="let it return a list of the files that it has drawn",
        )
    files = [each for each in drawn if _may_be_sent(each, directory)]
    if len(files) < len(drawn):
        say(
            f"pictures of method {task.method}: {len(drawn) - len(files)} of {len(drawn)} are no "
            "files below the directory that it was handed; they are left out"
        )
    return files


def _may_be_sent(file: object, directory: FilePath) -> bool:
    """Say whether something is a file below a trial's directory, and not for its owner alone."""
    if not isinstance(file, (Path, BucketPath)):
        return False
    above = f"{directory.resolve()}/"
    place = str(file.resolve())  # a link counts as what it leads to
    private = f"{above}{PRIVATE_FOLDER}/"
    return place.startswith(above) and not place.startswith(private) and file.is_file()


def _best_of(
    directory: FilePath,
    task: TrialTask,
    study_seed: int,
    data: SweepData,
    supplies: Supplies = NO_SUPPLIES,
) -> tuple[Method, DatasetInfo]:
    """Return the method of a trial with its best model."""
    saved = CheckpointStore(directory).load("best")
    if saved is None:
        raise CheckpointError(f"{directory} has no best checkpoint", fix="run the study again")
    refuse_changed(task.hparams, task.code)
    data = records_for(data, task)
    instance: Method = TRAINABLES[task.method]()
    context = RunContext(study_seed, task.trial, supplies=supplies, is_run=False)
    name, hparams = task.method, task.hparams
    _asked(name, "prepare", lambda: instance.prepare(data, hparams, task.plan, context))
    _asked(name, "load_state_dict", lambda: instance.load_state_dict(saved.state))
    return instance, data.info


def has_noise_figures(method: type[Method]) -> bool:
    """Say whether a method has figures of its noise, and takes the records as they are."""
    # Of features there are no public ones here.
    return issubclass(method, NoiseFigured) and not issubclass(method, OnFrozenFeatures)


def trial_noise(
    task: TrialTask,
    data: SweepData,
    *,
    study_seed: int,
    num_records: int,
    supplies: Supplies = NO_SUPPLIES,
    checkpoints: FilePath | None = None,
    device: str = "cpu",
) -> NoiseFigures:
    """Return the figures of a trial, from the declared public records of its data.

    Guarantees:
        The method is handed the public records alone, in place of the private ones, so that no
        private record is read. The weights are the public initial ones, or those of a checkpoint,
        which were released; figures of them and of public records cost nothing more.

    Args:
        task: An admitted trial of a method that ``has_noise_figures``.
        data: The records of its study.
        study_seed: Seed of the study, or of the trial where it has its own.
        num_records: Public records to estimate gradients from, at most; the first ones.
        supplies: What its study has besides.
        checkpoints: Directory of the trial, to look at its best weights; None: the initial ones.
        device: ``cpu`` or ``cuda``.
    Raises:
        DataError: There are no public records.
        CheckpointError: The trial has no intact best checkpoint.
        ModelError: The gradients of its network cannot be computed.
    """
    if data.searched_share is not None:
        data = data.for_records(task.records)
    data = data.for_trial(task.hparams)
    public = data.for_public_search(with_test=False)
    if task.records != "public":
        # Batches are those of the private training: declared numbers, no record.
        public = replace(public, info=data.info)
    method: Method = TRAINABLES[task.method]()
    assert isinstance(method, NoiseFigured)
    context = RunContext(study_seed, task.trial, device, supplies=supplies)
    method.prepare(public, task.hparams, task.plan, context)
    if checkpoints is not None:
        saved = CheckpointStore(checkpoints).load("best")
        if saved is None:
            raise CheckpointError(f"{checkpoints} has no best checkpoint", fix="use --at initial")
        refuse_changed(task.hparams, task.code)
        method.load_state_dict(saved.state)
    return method.layer_noise(num_records)

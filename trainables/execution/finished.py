"""What is had of a finished trial: its model, and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.errors import CheckpointError
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.execution.checkpoints import CheckpointStore
from dpsweep.trainables.execution.trial_data import records_for
from dpsweep.trainables.method import Method, RunContext

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import DatasetInfo, SweepData


def export_model(
    directory: Path, task: TrialTask, *, study_seed: int, data: SweepData
) -> tuple[torch.nn.Module, np.ndarray]:
    """Return a trial's best model on the CPU, and zeros in the shape of its input.

    Guarantees:
        The model is what DP training released; the example input is no record of the data.

    Raises:
        CheckpointError: The trial has no intact best checkpoint.
    """
    instance, info = _best_of(directory, task, study_seed, data)
    kind = np.float32 if info.text is None else np.int64
    return instance.export(), np.zeros((1, *info.input_shape), dtype=kind)


def draw_pictures(
    directory: Path, task: TrialTask, *, study_seed: int, data: SweepData
) -> list[Path]:
    """Let a trial's method draw what it has to show, from public records, beside its checkpoints.

    Raises:
        CheckpointError: The trial has no intact best checkpoint.
    """
    if TRAINABLES[task.method].pictures is Method.pictures:
        return []
    return _best_of(directory, task, study_seed, data)[0].pictures(directory)


def _best_of(
    directory: Path, task: TrialTask, study_seed: int, data: SweepData
) -> tuple[Method, DatasetInfo]:
    """Return the method of a trial with its best model."""
    saved = CheckpointStore(directory).load("best")
    if saved is None:
        raise CheckpointError(f"{directory} has no best checkpoint", fix="run the study again")
    data = records_for(data, task)
    instance: Method = TRAINABLES[task.method]()
    instance.prepare(data, task.hparams, task.plan, RunContext(study_seed, task.trial))
    instance.load_state_dict(saved.state)
    return instance, data.info

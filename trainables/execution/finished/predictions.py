"""Predictions of a trial's model on records that are declared public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsweep.foundation.file_paths import FilePath
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import Arrays, SweepData
from dpsweep.trainables.data.picture_sheet import picture_sheet
from dpsweep.trainables.execution.trial_data import records_for

if TYPE_CHECKING:
    import torch

_BATCH, _OF_EACH = 256, 20


@dataclass(frozen=True)
class Shown:
    """What a model predicts of public records, to be shown.

    Attributes:
        part: ``test`` or ``validation``: the records, which are declared public.
        names: Of the classes.
        counts: Records by their class, then by the predicted one; None for too many classes.
        sheet: PNG file with examples that it gets right and wrong; None where they are no images.
    """

    part: str
    names: tuple[str, ...]
    counts: list[list[int]] | None
    sheet: FilePath | None


def show(
    directory: FilePath,
    task: TrialTask,
    model: torch.nn.Module,
    data: SweepData,
    *,
    part: str,
    max_classes: int,
) -> Shown | None:
    """Return what a trial's model predicts, and draw examples beside the trial's checkpoints.

    Guarantees:
        Only the named part is looked at. Of a public part and a released model it is
        post-processing.

    Args:
        directory: Of the trial.
        task: The trial.
        model: Of the trial, on the CPU.
        data: The study's records.
        part: A part that is declared public.
        max_classes: Of how many classes records are counted.
    Returns:
        None where the records have no one class each, or there are none.
    """
    data = records_for(data, task)
    info, records = data.info, data.parts[part]
    if info.task != "classification" or not len(records[1]):
        return None
    predicted, counts = predict(model, records[0]), None
    if info.num_classes <= max_classes:
        counts = confusion_of(predicted, records[1], info.num_classes)
    sheet = draw_examples(
        directory / "examples.png",
        records,
        predicted,
        class_names=info.class_names,
        title=f"{part} records, declared public: wrong first, then right",
    )
    return Shown(part, tuple(info.class_names), counts, sheet)


def predict(model: torch.nn.Module, inputs: np.ndarray) -> np.ndarray:
    """Return the likeliest class of each record.

    Args:
        model: On the CPU, from (n, *shape) to logits, float (n, classes).
        inputs: (records, *shape), as the model takes them.
    Returns:
        int64 (records,).
    """
    import torch

    model.eval()
    with torch.no_grad():
        batches = [
            model(torch.from_numpy(np.array(inputs[start : start + _BATCH]))).argmax(dim=-1)
            for start in range(0, len(inputs), _BATCH)
        ]
    return torch.cat(batches).numpy()


def confusion_of(predicted: np.ndarray, labels: np.ndarray, num_classes: int) -> list[list[int]]:
    """Return numbers of records by their class, then by the predicted one.

    >>> confusion_of(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    [[1, 1], [0, 1]]
    """
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes * num_classes)
    table: list[list[int]] = counts.reshape(num_classes, num_classes).tolist()
    return table


def draw_examples(
    path: FilePath,
    records: Arrays,
    predicted: np.ndarray,
    *,
    class_names: Sequence[str],
    title: str,
) -> FilePath | None:
    """Write a sheet of images that are predicted wrong, then right; None for other records.

    Guarantees:
        The sheet shows records themselves: they must be public.

    Args:
        path: A PNG file.
        records: Images, float32 (records, channels, height, width), and labels.
        predicted: Of each record, int64 (records,).
        class_names: One name a class.
        title: Above all tiles.
    """
    import torch

    inputs, labels = records
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        return None
    right, wrong = np.flatnonzero(predicted == labels), np.flatnonzero(predicted != labels)
    shown = np.concatenate([wrong[:_OF_EACH], right[:_OF_EACH]])
    return picture_sheet(
        path,
        torch.from_numpy(np.array(inputs[shown])),
        torch.from_numpy(predicted[shown]),
        torch.from_numpy(np.array(labels[shown])),
        class_names=class_names,
        title=title,
    )

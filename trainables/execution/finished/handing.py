"""Handing on of a finished trial's model, by a process that has torch to one that has not."""

from __future__ import annotations

from dpsweep.foundation.file_paths import FilePath
from dpsweep.study.model_graph import ModelGraph
from dpsweep.study.trial import read_task
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.execution.finished.predictions import Shown, show
from dpsweep.trainables.execution.finished.trials import export_model


class FinishedModel:
    """The best model of a finished trial, as plain data.

    Guarantees:
        What it returns is of the released model and of public records; see ``export_model``,
        ``show`` and ``ModelGraph``.

    Args:
        directory: Of the trial.
        study_seed: Seed of the study.
        data: The study's records.
        supplies: What the study has besides.
    Raises:
        SweepError: The trial has no intact best checkpoint, or its method no model to export.
    """

    def __init__(
        self, directory: FilePath, *, study_seed: int, data: SweepData, supplies: Supplies
    ) -> None:
        self._directory, self._data = directory, data
        self._task = read_task(directory / "trial.json")
        self._model, self._example = export_model(
            directory, self._task, study_seed=study_seed, data=data, supplies=supplies
        )

    def show(self, part: str, max_classes: int) -> Shown | None:
        """Return what it predicts of a part that is declared public."""
        return show(
            self._directory,
            self._task,
            self._model,
            self._data,
            part=part,
            max_classes=max_classes,
        )

    def graph(self) -> ModelGraph:
        """Return the network."""
        return ModelGraph.of(self._model, self._example)

"""A tracker that writes one table of everything that may be logged."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.updates import Event


class CsvTracker(MemoryTracker):
    """Rows of experiment, trial, kind, name, step and value; written anew from the whole journal.

    The best model lies beside the table.
    """

    def __init__(self, uri: str, experiment: str, state_path: Path) -> None:
        super().__init__()
        self._path, self._experiment = Path(uri).resolve(), experiment

    @staticmethod
    def refuse_uri(uri: str) -> None:
        """Refuse what is no table."""
        if not uri.endswith(".csv"):
            raise BadInputError(f"{uri!r} is no .csv file", fix="name one")

    def handle(self, events: Sequence[Event]) -> None:
        """Write the table with what the events add."""
        try:
            super().handle(events)
        finally:
            self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        with new.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["experiment", "trial", "kind", "name", "step", "value"])
            for trial, run in self.runs.items():
                start = [self._experiment, "study" if trial is None else trial]
                writer.writerow([*start, "status", "", "", run.status])
                for kind, values in (("param", run.params), ("tag", run.tags)):
                    writer.writerows([*start, kind, k, "", v] for k, v in values.items())
                writer.writerows([*start, "metric", m.name, m.step, m.value] for m in run.metrics)
        new.replace(self._path)

    def _model_path(self, trial: int) -> Path:
        return self._path.with_suffix(f".{trial}.pt")

    def log_model(self, trial: int, model: Any, input_example: Any, label: ModelLabel) -> str:
        """Save the model, with its label, and return its address."""
        import torch

        path = self._model_path(trial)
        torch.save({"model": model, "claim": label.tags}, path)
        return path.as_uri()

    def has_model(self, trial: int) -> bool:
        """Say whether a trial's model is there."""
        return self._model_path(trial).exists()

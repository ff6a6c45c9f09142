"""MemoryTracker: the same runs in dictionaries, for tests and dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.tracking.base import TrackingRefusedError
from dpsweep.tracking.drafts import MetricPoint
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.updates import Event, read_events


@dataclass
class MemoryRun:
    """One run: what a tracking store would show."""

    run_id: str
    parent_run_id: str | None
    status: str = "RUNNING"
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[MetricPoint] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    note: str = ""
    datasets: list[dict[str, Any]] = field(default_factory=list)

    def history(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of one metric, in order of arrival."""
        return [(point.step, point.value) for point in self.metrics if point.name == name]


class MemoryTracker:
    """A tracker that forgets everything with its process."""

    notes: Sequence[str] = ()

    def __init__(self) -> None:
        self.runs: dict[int | None, MemoryRun] = {}
        self.models: dict[str, Any] = {}
        self.labels: dict[str, ModelLabel] = {}
        self._state = TrackingState()

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event handled, -1 before the first."""
        return self._state.seq

    @property
    def parent_run_id(self) -> str | None:
        """Run of the study."""
        return self.runs[None].run_id if None in self.runs else None

    def handle(self, events: Sequence[Event]) -> None:
        """Bring the runs up to date; see ``Tracker.handle``."""
        reading = read_events(self._state, events)
        for update in reading.updates:
            if update.trial not in self.runs:
                name = "memory-study" if update.trial is None else f"memory-{update.trial:04d}"
                self.runs[update.trial] = MemoryRun(name, self.parent_run_id)
            run = self.runs[update.trial]
            run.status = update.status or ("RUNNING" if update.opens else run.status)
            run.params |= update.params
            run.tags |= update.tags
            run.metrics += [point for point in update.metrics if point not in run.metrics]
            run.texts |= update.texts
            run.note, run.datasets = update.note or run.note, update.datasets or run.datasets
            run.artifacts += [path for path in update.artifacts if path not in run.artifacts]
        self._state = reading.state
        if reading.refused:
            raise TrackingRefusedError(reading.refused)

    def run_id_of(self, trial: int) -> str | None:
        """Return the run of a trial, or None if it has none."""
        return self.runs[trial].run_id if trial in self.runs else None

    def log_model(self, trial: int, model: Any, input_example: Any, label: ModelLabel) -> str:
        """Keep the model and return its address."""
        uri = f"memory:/{self.runs[trial].run_id}"
        self.models.setdefault(uri, model)
        self.labels[uri] = label
        return uri

    def has_model(self, trial: int) -> bool:
        """Say whether a trial's model is kept."""
        return trial in self.runs and f"memory:/{self.runs[trial].run_id}" in self.models

    def label_model(self, trial: int, label: ModelLabel) -> None:
        """Keep the label that holds now."""
        self.labels[f"memory:/{self.runs[trial].run_id}"] = label

    def close(self) -> None:
        """Nothing to release."""

"""Tracking: one schema of names, one spool, one tracker per store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dpsweep.foundation.registry import Registry
from dpsweep.tracking.base import Tracker, TrackingRefusedError
from dpsweep.tracking.schema import UnloggableError, check_loggable
from dpsweep.tracking.spool import Spool
from dpsweep.tracking.state import read_run_ids

__all__ = [
    "TRACKERS",
    "Spool",
    "Tracker",
    "TrackingRefusedError",
    "UnloggableError",
    "check_loggable",
    "open_spool",
    "read_run_ids",
]

TRACKERS = Registry(
    "tracker",
    {
        "memory": "dpsweep.tracking.memory:MemoryTracker",
        "mlflow": "dpsweep.tracking.mlflow:MLflowTracker",
    },
    group="dpsweep.trackers",
)


class StudyPaths(Protocol):
    """Where a study keeps its journal and its tracker's state."""

    name: str
    journal: Path
    tracking: Path


class TrackingChoice(Protocol):
    """The ``tracking`` part of a spec."""

    @property
    def uri(self) -> str | None:
        """Tracking URI, or None for no tracking."""

    @property
    def experiment(self) -> str | None:
        """Name of the experiment, or None for the study's name."""


def open_spool(
    files: StudyPaths, choice: TrackingChoice, on_message: Callable[[str], None] | None = None
) -> Spool:
    """Start carrying a study's journal to its tracking store.

    Returns at once: MLflow is imported in the spool's thread. Use it as a context manager.
    """
    uri = choice.uri
    if uri is None:
        return Spool(files.journal, None)

    def factory() -> Tracker:
        tracker: Tracker = TRACKERS["mlflow"](uri, choice.experiment or files.name, files.tracking)
        return tracker

    return Spool(files.journal, factory, files.tracking, on_message=on_message)

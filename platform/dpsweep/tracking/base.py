"""The interface of a tracker: it consumes the study's journal and keeps runs up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dpsweep.foundation.errors import BadInputError, SweepError
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.updates import Event


class TrackingRefusedError(SweepError):
    """Some values of a batch were not logged; all others were, so it is not to be retried.

    Attributes:
        refused: What was not logged, and why, one line each.
    """

    def __init__(self, refused: Sequence[str]) -> None:
        self.refused = tuple(refused)
        super().__init__("\n".join(refused))


class StoreDamagedError(SweepError):
    """The tracking store is a file of this machine, and it is damaged."""


class StoreRefusedError(SweepError):
    """The tracking store answers, and refuses whoever asks."""


class UnreadArtifactError(SweepError):
    """A file of the study that a run is to get cannot be read here; the store is well."""


class ExperimentDeletedError(BadInputError):
    """The experiment is deleted in the tracking store; it can be restored there."""


class TrackerEndedError(SweepError):
    """The tracker's own process has ended; another one can be started."""


class Tracker(Protocol):
    """Keeps one run per study and one per started trial, from journal events alone.

    A tracker is used from one thread. It has no part in what the study decides: the study goes on
    while a tracker fails, and the events are delivered later.
    """

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event that is safely in the store, -1 if none is known."""

    @property
    def parent_run_id(self) -> str | None:
        """Run of the study, or None before ``study_started`` was handled."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for its user on how it was opened, a line each."""

    def handle(self, events: Sequence[Event]) -> None:
        """Bring the store up to date with ``events``; idempotent under replay.

        Raises:
            TrackingRefusedError: Some values may not be logged; the rest was, do not retry.
            Exception: The store could not be reached; the same events can be given again.
        """

    def run_id_of(self, trial: int) -> str | None:
        """Return the run of a trial, or None if it has none."""

    def log_model(self, trial: int, model: Any, input_example: Any, label: ModelLabel) -> str:
        """Store a trial's model once and return where it can be loaded from.

        Args:
            trial: A trial that has a run.
            model: A ``torch.nn.Module`` on the CPU; or its ``ModelGraph``, to a tracker whose class
                says ``takes_graphs = True``: the driver need not load torch then.
            input_example: Array or tensor, shape (batch, ...): only its shape and dtype are used,
                so that no record is ever stored beside a model. None with a graph.
            label: What the model must carry: tags, description, metadata, privacy card.
        """

    def has_model(self, trial: int) -> bool:
        """Say whether a trial's model is in the store."""

    def label_model(self, trial: int, label: ModelLabel) -> None:
        """Give a trial's logged model the label that holds now; nothing if it is not logged."""

    def close(self) -> None:
        """Release the store; safe to call twice."""

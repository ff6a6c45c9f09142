"""Releases of a start: models that trials of a study may begin with, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dpsweep.foundation.file_paths import FilePath

#: Number of a run, and the epsilon whose last model is meant.
ReleaseKey = tuple[int, float]


@dataclass(frozen=True)
class Release:
    """Where a released model lies.

    Attributes:
        directory: Of the trial that released it.
        name: Of the checkpoint.
        sha256: Of its tensors, as the ledger of the run has it.
    """

    directory: FilePath
    name: str
    sha256: str


class ReleasedModels(Protocol):
    """The released models of a study's start: ``trainables.execution.starts.Starts``."""

    @property
    def hparams(self) -> Mapping[str, Any]:
        """Hyperparameters that all runs of the start were trained with."""

    def release(self, key: ReleaseKey | None) -> Release | None:
        """Return where a released model lies; None without a key, or where nothing is released."""

    def model_state(self, key: ReleaseKey) -> Mapping[str, Any] | None:
        """Return the weights of a released model on the CPU, or None: there are no releases."""

"""What trials may start from: models that one private run has released along its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsweep.errors import CheckpointError

#: Number of a run, and the epsilon whose last model is meant.
ReleaseKey = tuple[int, float]


def release_name(position: int) -> str:
    """Return the name of the checkpoint that a run releases at a position of its plan."""
    return f"release-{position:06d}"


@dataclass(frozen=True)
class Starts:
    """The released models of a study's start.

    Guarantees:
        Each is a DP output of the run that released it: using it costs its users nothing beyond
        that run's events up to the release, which their tasks name as ``inherited``.

    Attributes:
        hparams: Hyperparameters of dp_sgd that all runs were trained with.
        releases: Release -> (directory of its trial, name of its checkpoint); empty where only
            shapes matter, and every state is then None.
    """

    hparams: Mapping[str, Any]
    releases: Mapping[ReleaseKey, tuple[Path, str]]

    def model_state(self, key: ReleaseKey) -> Mapping[str, Any] | None:
        """Return the weights of a released model on the CPU, or None: there are no releases.

        Raises:
            CheckpointError: The release is missing or damaged.
        """
        from dpsweep.trainables.checkpoints import CheckpointStore

        if not self.releases:
            return None
        run, epsilon = key
        if key not in self.releases:
            raise CheckpointError(f"run {run} of the start has released nothing at {epsilon:g}")
        directory, name = self.releases[key]
        saved = CheckpointStore(directory).load(name)
        if saved is None:
            raise CheckpointError(f"{directory} has no release {name}", fix="run the study again")
        state: Mapping[str, Any] = saved.state["model"]
        return state

"""Starts of trials: models that one private run has released along its way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.errors import CheckpointError
from dpsweep.trainables.data.releases import Release, ReleaseKey
from dpsweep.trainables.execution.checkpoint_files import LOST_RELEASE


def release_name(index: int) -> str:
    """Return the name of the checkpoint of a run's release, numbered by its epsilon from 0."""
    return f"release-{index}"


@dataclass(frozen=True)
class Starts:
    """The released models of a study's start.

    Guarantees:
        Each is a DP output of the run that released it: using it costs its users nothing beyond
        that run's events up to the release, which their tasks name as ``inherited``.

    Attributes:
        hparams: Hyperparameters of the start's method that all runs were trained with.
        releases: Where each is; empty where only shapes matter, and every state is then None.
    """

    hparams: Mapping[str, Any]
    releases: Mapping[ReleaseKey, Release]

    def release(self, key: ReleaseKey | None) -> Release | None:
        """Return where a released model lies; None without a key, or where nothing is released."""
        return None if key is None else self.releases.get(key)

    def model_state(self, key: ReleaseKey) -> Mapping[str, Any] | None:
        """Return the weights of a released model on the CPU, or None: there are no releases.

        Raises:
            CheckpointError: The release is missing or damaged.
        """
        from dpsweep.trainables.execution.checkpoints import CheckpointStore

        if not self.releases:
            return None
        run, epsilon = key
        if key not in self.releases:
            raise CheckpointError(f"run {run} of the start has released nothing at {epsilon:g}")
        release = self.releases[key]
        saved = CheckpointStore(release.directory).load(release.name)
        if saved is None or saved.sha256 != release.sha256:
            which = "no" if saved is None else "another"
            raise CheckpointError(
                f"{release.directory} has {which} {release.name} than the ledger of its run says",
                fix=LOST_RELEASE,
            )
        state: Mapping[str, Any] = saved.state["model"]
        return state

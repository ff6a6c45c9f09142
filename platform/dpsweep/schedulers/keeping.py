"""Processes that Ray Tune keeps from one trial to the next."""

from __future__ import annotations

from typing import Any

from dpsweep.spec.cluster import ResourcesSpec


class KeptProcesses:
    """Lets Tune keep the processes of all trials that end, as long as new trials may come.

    Tune keeps one where a trial waits for it already, and one more. Of two trials that end at once
    it ends one's process, and the next trial waits until a new one has loaded torch.

    Args:
        most: How many trials may run at once. 0 leaves it to Tune, as where trials occupy different
            shares of a node: a process that is kept holds what a trial of another share needs.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._cache: Any = None
        self._share: Any = None

    @classmethod
    def of(cls, resources: ResourcesSpec, most: int) -> KeptProcesses:
        """Return those of a stage that runs at most so many trials at once."""
        return cls(most if len(resources.shares) == 1 else 0)

    def keep(self, controller: Any, trial: Any) -> None:
        """Keep processes that run trials such as this one."""
        if self._most and self._cache is None:
            self._cache, self._share = controller._actor_cache, trial.placement_group_factory
            self._cache.increase_max(self._share, by=self._most)

    def release(self) -> None:
        """Leave it to Tune again, which keeps none that no trial waits for."""
        if self._most and self._cache is not None:
            self._cache.decrease_max(self._share, by=self._most)
            self._most = 0

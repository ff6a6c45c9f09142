"""Processes that Ray Tune keeps from one trial to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dpsweep.spec.cluster import ResourcesSpec

#: Seconds for a process that was asked for, before a trial takes another one and it is ended.
PATIENCE_S = 30.0


class KeptProcesses:
    """Lets Tune keep the processes of all trials that end, as long as new trials may come.

    Tune keeps one where a trial waits for it already, and one more. Of two trials that end at once
    it ends one's process, and the next trial waits until a new one has loaded torch. A trial whose
    process is about to be there is given one that is free sooner, and its own is ended, half
    loaded: of short trials the first process would run all, beside others that never come to it.

    Args:
        most: How many trials may run at once. 0 leaves it to Tune, as where trials occupy different
            shares of a node: a process that is kept holds what a trial of another share needs.
        clock: Returns seconds.
    """

    def __init__(self, most: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._cache: Any = None
        self._share: Any = None
        self._waits_since: dict[str, float] = {}

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

    def instead_of(self, reuse: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        """Return what gives a trial a process that was kept, in the place of Tune's own method."""

        def maybe_reuse(controller: Any, trial: Any) -> bool:
            has_own = trial in controller._trial_to_actor
            if self._most and has_own and trial not in controller._resetting_trials:
                since = self._waits_since.setdefault(trial.trial_id, self._clock())
                if self._clock() - since < PATIENCE_S:
                    return False
            return reuse(controller, trial)

        return maybe_reuse

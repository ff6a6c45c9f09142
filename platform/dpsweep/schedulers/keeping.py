"""Processes that Ray Tune keeps from one trial to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dpsweep.spec.cluster import ResourcesSpec

#: Seconds for which a free process waits for a new trial, before it is given to one that waits for
#: its own; and those for which it is kept if no trial takes it.
PATIENCE_S, IDLE_S = 2.0, 5.0


class KeptProcesses:
    """Lets Tune keep the processes of all trials that end, for the trials that follow at once.

    Tune keeps one where a trial waits for it already, and one more. Of two trials that end at once
    it ends one's process, and the next trial waits until a new one has loaded torch. A trial whose
    process is about to be there is given one that is free sooner, and its own is ended, half
    loaded: of short trials the first process would run all, beside others that never come to it.

    What no trial takes for ``IDLE_S`` is left to Tune: it holds CPUs and GPUs that others may want,
    and Tune learns that such a process has died when it gives it a trial, which counts as a death
    of the trial.

    Args:
        most: How many trials may run at once. 0 leaves it to Tune, as where trials occupy different
            shares of a node: a process that is kept holds what a trial of another share needs.
        clock: Returns seconds.
    """

    def __init__(self, most: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._cache: Any = None  # Tune's, of processes, while its limit is raised
        self._share: Any = None
        self._idle_since: float | None = None

    @classmethod
    def of(cls, resources: ResourcesSpec, most: int) -> KeptProcesses:
        """Return those of a stage that runs at most so many trials at once."""
        return cls(most if len(resources.shares) == 1 else 0)

    def keep(self, controller: Any, trial: Any) -> None:
        """Keep processes that run trials such as this one, which is new."""
        cache = getattr(controller, "_actor_cache", None)
        if self._most and self._cache is None and cache is not None:
            self._cache, self._share, self._idle_since = cache, trial.placement_group_factory, None
            cache.increase_max(self._share, by=self._most)

    def look(self, *, is_over: bool) -> None:
        """Leave what no trial takes to Tune, which keeps no more than trials wait for.

        Args:
            is_over: Whether no new trial will come.
        """
        if self._cache is None:
            return
        if not self._cache.num_cached_objects:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock()
        if is_over or self._is_idle(IDLE_S):
            self._cache.decrease_max(self._share, by=self._most)
            self._cache = None
        if is_over:
            self._most = 0

    def instead_of(self, reuse: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        """Return what gives a trial a process that was kept, in the place of Tune's own method."""

        def maybe_reuse(controller: Any, trial: Any) -> bool:
            has_own = trial in controller._trial_to_actor
            is_new = has_own and trial not in controller._resetting_trials
            if self._cache is not None and is_new and not self._is_idle(PATIENCE_S):
                return False
            is_taken = reuse(controller, trial)
            if is_taken:
                self._idle_since = None  # of the next one
            return is_taken

        return maybe_reuse

    def _is_idle(self, seconds: float) -> bool:
        return self._idle_since is not None and self._clock() - self._idle_since >= seconds

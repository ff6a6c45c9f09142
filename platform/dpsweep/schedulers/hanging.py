"""Hanging trials: one that has not reported for too long loses its process, as by a crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial


class HangWatch(tune.Callback):
    """Ends the actor of a trial that is silent for too long; Tune handles that as any death.

    Counted from when Tune has started the trial's actor, and from each report, so the limit has to
    cover the loading of the data, the longest way between two reports and a score. A process that
    still runs Python is ended like one that does not: by Ray, with SIGKILL.

    Args:
        limit_s: Seconds, or None for no limit.
        on_hang: Told of the trial before its actor is ended.
        clock: Returns seconds.
        kill: Ends an actor.
    """

    def __init__(
        self,
        limit_s: float | None,
        on_hang: Callable[[int], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        kill: Callable[[Any], None] = ray.kill,
    ) -> None:
        self._limit_s, self._on_hang = limit_s, on_hang
        self._clock, self._kill = clock, kill
        self._heard: dict[str, float] = {}

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Trial, result: Any, **info: Any
    ) -> None:
        """Count from here."""
        self._heard[trial.trial_id] = self._clock()

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End what hangs; Tune calls this several times a second."""
        if self._limit_s is None:
            return
        now = self._clock()
        for trial in trials:
            actor = trial.temporary_state.ray_actor
            if trial.status != Trial.RUNNING or actor is None:
                self._heard.pop(trial.trial_id, None)  # it waits, or has lost its process
            elif now - self._heard.setdefault(trial.trial_id, now) > self._limit_s:
                del self._heard[trial.trial_id]
                self._on_hang(trial.config["trial"])
                self._kill(actor)

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles callbacks with its experiment state, which is never read back."""
        return {"_limit_s": None}

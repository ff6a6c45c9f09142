"""Words of a study of which no trial can run, because a cluster is full."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial

from dpsweep.foundation.words import counted

#: A trial takes some seconds to start; longer, and somebody has what it waits for.
PATIENCE_S = 30.0
EVERY_S = 300.0
_FULL = "Other jobs have the rest, and Ray does not know until when"
_STARTING = "Its process is starting, or no one node has them all"


class Waiting(tune.Callback):
    """Says what trials wait for, once nothing has run for a while, and then now and then.

    When others end is not known to Ray, so there is no forecast of it; that of the study is shown
    with its progress as soon as trials run.

    Args:
        say: Hears a line.
        clock: Seconds.
    """

    def __init__(
        self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say: Callable[[str], None] | None = say
        self._clock: Callable[[], float] | None = clock
        self._since: float | None = None
        self._said: float | None = None

    def on_step_begin(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        """Look at the trials; Tune calls this many times a second."""
        assert self._clock is not None
        now = self._clock()
        waiting = [trial for trial in trials if trial.status == Trial.PENDING]
        if not waiting or any(trial.status == Trial.RUNNING for trial in trials):
            if self._said is not None and self._since is not None:
                self._tell(f"trials run, after {_minutes(now - self._since)} without room")
            self._since = self._said = None
            return
        if self._since is None:
            self._since = now
        if now - self._since < PATIENCE_S or (
            self._said is not None and now - self._said < EVERY_S
        ):
            return
        self._said = now
        cpu, gpu = waiting[0].config["cpu"], waiting[0].config["gpu"]
        free, total = ray.available_resources(), ray.cluster_resources()
        amounts = [
            f"{free.get(kind, 0.0):g} of {counted(total.get(kind, 0.0), kind)}"
            for kind in ("CPU", "GPU")
        ]
        is_enough = cpu <= free.get("CPU", 0.0) and gpu <= free.get("GPU", 0.0)
        self._tell(
            f"{counted(len(waiting), 'trial')} waiting for {_minutes(now - self._since)}, none "
            f"runs: one asks for {_amounts(cpu, gpu)}; free are {' and '.join(amounts)}. "
            f"{_STARTING if is_enough else _FULL}; nothing is spent meanwhile"
        )

    def _tell(self, text: str) -> None:
        assert self._say is not None
        self._say(text)

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles callbacks with its experiment state, which is never read back."""
        return {"_say": None, "_clock": None}


def _amounts(cpu: float, gpu: float) -> str:
    return f"{counted(cpu, 'CPU')} and {counted(gpu, 'GPU')}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"

"""The Ray Tune class trainable: one actor executes one trial after another."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from dpsweep.foundation.errors import (
    BudgetExceededError,
    LedgerError,
    LockedError,
    SweepError,
    described,
)
from dpsweep.study.trial import TrialReport, TrialTask, read_task
from dpsweep.trainables.execution.allocator import keep_freed_memory
from dpsweep.trainables.networks.own_models import look_in

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import SweepData
    from dpsweep.trainables.execution.execution import TrialExecution
    from dpsweep.trainables.execution.settings import ExecutionSettings

LOCK_TRIES = 30
MEMORY_ADVICE = "fix: lower batch.physical or search.max_concurrent, or raise resources"
POINTER = "dpsweep-checkpoint.json"


class DPTrainable(tune.Trainable):
    """Executes an admitted trial: its config names a directory that holds its plan.

    One actor serves many trials (``reuse_actors``): importing torch costs seconds, a trial must
    not pay it again. ``reset_config`` therefore rebuilds everything but the imports.

    A Python error ends the trial as failed (an error repeats; a retry would spend privacy for
    nothing). The death of the process does not: Ray starts another actor, which continues from the
    trial's own last checkpoint. Ray's checkpoints are pointers to that one.
    """

    def setup(
        self,
        config: dict[str, Any],
        *,
        settings: ExecutionSettings,
        data: SweepData,
    ) -> None:
        """Remember which trial to execute, and pay the slow imports.

        The trial is opened by the first ``step``, not here: Tune may start an actor for a trial and
        then hand the trial to another one that has become free, and only one process may hold the
        trial's ledger.
        """
        import torch

        import dpsweep.trainables.execution.execution  # noqa: F401

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        keep_freed_memory()
        if settings.started_in is not None:
            look_in(settings.started_in)
        self._settings, self._data = settings, data
        self._execution: TrialExecution | None = None
        self._is_busy = False
        is_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
        if is_actor and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._leave)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked in Ray's own

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Leave on SIGTERM: after the segment under way, whose model is kept, or at once."""
        if self._execution is None or not self._is_busy:
            raise SystemExit
        self._execution.is_leaving = True

    def _open(self, task: TrialTask) -> TrialExecution:
        """Open a trial; a predecessor that is still being stopped gets a while to end."""
        for _ in range(LOCK_TRIES):
            try:
                return self._try_to_open(task)
            except LockedError:
                time.sleep(1.0)
        return self._try_to_open(task)

    def _try_to_open(self, task: TrialTask) -> TrialExecution:
        from dpsweep.trainables.execution.execution import TrialExecution

        directory = Path(self.config["directory"])
        return TrialExecution(directory, task, settings=self._settings, data=self._data)

    def step(self) -> dict[str, Any]:
        """Run to the next report; returns ``{"done": .., "report": {..}}`` and the metrics."""
        trial = self.config["trial"]
        self._is_busy = True
        try:
            if self._execution is None:
                path = Path(self.config["directory"]) / "trial.json"
                self._execution = self._open(read_task(path))
            report = self._execution.advance()
        except Exception as error:
            report = _failure(trial, error)
            if self._execution is not None:
                report = dataclasses.replace(
                    report,
                    step=self._execution.position,
                    epsilon=self._execution.ledger.epsilon(),
                    rung=self._execution.rung,
                    charged=len(self._execution.ledger),
                    value=self._execution.value,
                    best_step=self._execution.best_step,
                    delivered=self._execution.delivered,
                )
        finally:
            self._is_busy = False
        if report.done:
            self.cleanup()
        return _result(report)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a pointer to the trial's own last checkpoint, which ``step`` has saved; close it.

        Tune asks for a checkpoint when it pauses a trial. It may keep this actor for other trials
        and continue the paused one in another process, which then needs the ledger.
        """
        position = 0
        if self._execution is not None:
            position = self._execution.position
            self._execution.pause()
            self._execution = None
        (Path(checkpoint_dir) / POINTER).write_text(json.dumps({"step": position}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to do: opening the trial restores its own last checkpoint."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Close the trial; the next ``step`` opens the one that ``new_config`` names."""
        self.cleanup()
        return True

    def cleanup(self) -> None:
        """Release the trial's ledger."""
        if self._execution is not None:
            self._execution.close()
            self._execution = None


def _result(report: TrialReport) -> dict[str, Any]:
    return {"done": report.done, "report": dataclasses.asdict(report), **report.metrics}


def _is_out_of_memory(error: Exception) -> bool:
    """Say whether a process or a device has no room for what was asked, as PyTorch says it."""
    message = str(error)  # looked at and not shown
    words = ("can't allocate memory", "out of memory", "Unable to allocate")
    is_foreign = not isinstance(error, SweepError)
    return isinstance(error, MemoryError) or (is_foreign and any(word in message for word in words))


def _failure(trial: int, error: Exception) -> TrialReport:
    """Return the last report of a trial that an error has ended."""
    text = described(error)
    if _is_out_of_memory(error):
        text = f"out of memory{text.removeprefix(type(error).__name__)}; {MEMORY_ADVICE}"
    is_violation = isinstance(error, (BudgetExceededError, LedgerError))
    if is_violation and not isinstance(error, LockedError):
        text = f"privacy violation: {text}"
    return TrialReport(
        trial=trial, step=0, metrics={}, epsilon=0.0, done=True, reason=text, failure=text
    )

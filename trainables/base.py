"""The Ray Tune class trainable: one actor executes one trial after another."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from dpsweep.errors import BudgetExceededError, LedgerError, LockedError, SweepError
from dpsweep.study import TrialTask
from dpsweep.trainables.allocator import keep_freed_memory
from dpsweep.trial import TrialReport

if TYPE_CHECKING:
    from dpsweep.trainables.data import SweepData
    from dpsweep.trainables.execution import ExecutionSettings, TrialExecution

LOCK_TRIES = 30
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

        import dpsweep.trainables.execution  # noqa: F401

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        keep_freed_memory()
        self._settings, self._data = settings, data
        self._execution: TrialExecution | None = None

    def _open(self, task: TrialTask) -> TrialExecution:
        """Open a trial; a predecessor that is still being stopped gets a while to end."""
        for _ in range(LOCK_TRIES):
            try:
                return self._try_to_open(task)
            except LockedError:
                time.sleep(1.0)
        return self._try_to_open(task)

    def _try_to_open(self, task: TrialTask) -> TrialExecution:
        from dpsweep.trainables.execution import TrialExecution

        directory = Path(self.config["directory"])
        return TrialExecution(directory, task, settings=self._settings, data=self._data)

    def step(self) -> dict[str, Any]:
        """Run to the next report; returns ``{"done": .., "report": {..}}`` and the metrics."""
        trial = self.config["trial"]
        try:
            if self._execution is None:
                path = Path(self.config["directory"]) / "trial.json"
                self._execution = self._open(TrialTask.from_json(path.read_text()))
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
                )
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


def _failure(trial: int, error: Exception) -> TrialReport:
    """Describe an error without its values: a message may quote private records, a place cannot.

    Our own errors are written to be shown, so their text is kept.
    """
    if isinstance(error, SweepError):
        text = str(error)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        text = f"{type(error).__name__}{place}"
    is_violation = isinstance(error, (BudgetExceededError, LedgerError))
    if is_violation and not isinstance(error, LockedError):
        text = f"privacy violation: {text}"
    return TrialReport(
        trial=trial, step=0, metrics={}, epsilon=0.0, done=True, reason=text, failure=text
    )

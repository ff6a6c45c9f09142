"""The Ray Tune class trainable: one actor executes one trial after another."""

from __future__ import annotations

import dataclasses
import json
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from dpsweep.errors import BudgetExceededError, LedgerError, SweepError
from dpsweep.trial import TrialReport

if TYPE_CHECKING:
    from dpsweep.trainables.data import SweepData
    from dpsweep.trainables.execution import ExecutionSettings

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
        """Open the trial that ``config`` names; see ``dpsweep.study.TrialTask``."""
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._settings, self._data = settings, data
        self._execution: Any = None
        self._setup_failure: TrialReport | None = None
        self._open(config)

    def _open(self, config: dict[str, Any]) -> None:
        from dpsweep.study import TrialTask
        from dpsweep.trainables.execution import TrialExecution

        directory = Path(config["directory"])
        task = TrialTask.from_json((directory / "trial.json").read_text())
        self._setup_failure = None
        try:
            self._execution = TrialExecution(
                directory,
                trial=task.trial,
                method=task.method,
                hparams=task.hparams,
                plan=task.plan,
                settings=self._settings,
                data=self._data,
            )
        except Exception as error:
            self._setup_failure = _failure(task.trial, error)

    def step(self) -> dict[str, Any]:
        """Run to the next report; returns ``{"done": .., "report": {..}}`` and the metrics."""
        if self._setup_failure is not None:
            return _result(self._setup_failure)
        try:
            return _result(self._execution.advance())
        except Exception as error:
            execution = self._execution
            failed = _failure(execution.trial, error)
            return _result(
                dataclasses.replace(
                    failed,
                    step=execution.position,
                    epsilon=execution.ledger.epsilon(),
                    value=execution.value,
                    best_step=execution.best_step,
                )
            )

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a pointer to the trial's own last checkpoint, which ``step`` has saved."""
        position = self._execution.position if self._execution else 0
        (Path(checkpoint_dir) / POINTER).write_text(json.dumps({"step": position}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to do: opening the trial has restored its last checkpoint already."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Close the trial and open another one in the same process."""
        self.cleanup()
        self._open(new_config)
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
    if isinstance(error, BudgetExceededError | LedgerError):
        text = f"privacy violation: {text}"
    return TrialReport(
        trial=trial, step=0, metrics={}, epsilon=0.0, done=True, reason=text, failure=text
    )

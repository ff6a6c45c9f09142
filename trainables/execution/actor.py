"""The Ray Tune class trainable: one actor executes one trial after another."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.exceptions import RayActorError
from ray.tune.trainable import Trainable

from dpsweep.foundation.errors import (
    AbsentLedgerError,
    BudgetExceededError,
    ChangedCodeError,
    LedgerError,
    LockedError,
    ModelError,
    StorageError,
    SweepError,
    UnreachableError,
    described,
    is_own,
    is_signal,
)
from dpsweep.foundation.file_paths import FilePath, file_path
from dpsweep.foundation.kept import keep_compiled
from dpsweep.foundation.process.garbage import loading, unsearched
from dpsweep.foundation.process.silence import fall_silent
from dpsweep.ledgers.admission import check_admitted
from dpsweep.spec.cluster import Share
from dpsweep.study.trial import TrialReport, TrialTask, read_task
from dpsweep.trainables.devices.failures import has_broken_device, lacks_memory
from dpsweep.trainables.devices.sharing import TorchGpu, hold_to_share
from dpsweep.trainables.execution.memory import (
    MEMORY_ADVICE,
    as_it_fits,
    keep_freed_memory,
    make_smaller,
)
from dpsweep.trainables.execution.pace import Left
from dpsweep.trainables.networks.own_models import look_in, refuse_changed

if TYPE_CHECKING:
    from dpsweep.study.model_graph import ModelGraph
    from dpsweep.trainables.data.dataset import SweepData
    from dpsweep.trainables.execution.execution import TrialExecution
    from dpsweep.trainables.execution.finished.handing import FinishedModel
    from dpsweep.trainables.execution.finished.predictions import Shown
    from dpsweep.trainables.execution.settings import ExecutionSettings

LOCK_TRIES = 90  # a second each; a database lets go of a dead node's locks within a minute
#: Seconds after which a process ends that was told to leave and is asked for nothing.
IDLE_S = 5.0
POINTER = "dpsweep-checkpoint.json"
LEFT = "told to leave by SIGTERM; the trial is kept and continues in another process"


class DPTrainable(Trainable):
    """Executes an admitted trial: its config names a directory that holds its plan.

    One actor serves many trials (``reuse_actors``): importing torch costs seconds, a trial must
    not pay it again. ``reset_config`` therefore rebuilds everything but the imports.

    A Python error ends the trial as failed (an error repeats; a retry would spend privacy for
    nothing), but for want of memory, once: then it goes on from its last checkpoint with fewer
    examples in memory. With a fraction of a GPU that is memory of its own share; it cannot take
    that of other trials there. The death of the process does not end it: Ray starts another actor,
    which continues from the trial's own last checkpoint. Ray's checkpoints are pointers to that
    one. Nor does SIGTERM, by which a machine is taken away: the trial is kept first, and it does
    not count.
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
        with unsearched():
            import torch

            _execution()
        self._share = share = Share(config["cpu"], config["gpu"])  # of all trials of this actor
        torch.set_num_threads(share.threads)
        keep_freed_memory()
        keep_compiled()  # a network of the user's own may ask for torch's compiler
        if settings.started_in is not None:
            look_in(settings.started_in)
        self._settings, self._data = dataclasses.replace(settings, device=share.device), data
        self._execution: TrialExecution | None = None
        self._finished: FinishedModel | None = None
        self._is_busy = self._is_leaving = False
        self._note = ""
        self._end: threading.Timer | None = None
        is_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
        if is_actor:
            fall_silent()
        if is_actor and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._leave)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked in Ray's own

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Leave on SIGTERM: after the segment under way, whose model is kept, or soon.

        A process that has nothing to do may be about to get a trial: it says no to that, or ends.
        """
        self._is_leaving = True
        if self._execution is not None:
            self._execution.leaving.is_told = True
        if not self._is_busy and self._end is None:
            self._end = threading.Timer(IDLE_S, os._exit, (0,))
            self._end.daemon = True
            self._end.start()

    def _open(self, task: TrialTask) -> TrialExecution:
        """Open a trial; a predecessor that is still being stopped gets a while to end."""
        for _ in range(LOCK_TRIES):
            try:
                return self._try_to_open(task)
            except LockedError as error:
                if not is_own(error):
                    raise
                time.sleep(1.0)
        return self._try_to_open(task)

    def _try_to_open(self, task: TrialTask) -> TrialExecution:
        check_admitted(self._settings.ledger, task.trial, task.full_plan, task.digest)
        refuse_changed(task.hparams, task.code)
        if self._share.gpu:
            hold_to_share(self._share.gpu, TorchGpu())
        digest = task.digest
        task, self._note = as_it_fits(self._directory, task)
        settings, data = self._settings, self._data
        try:
            execution: TrialExecution = _execution().TrialExecution(
                self._directory, task, settings=settings, data=data
            )
        except BaseException as error:
            if not is_signal(error):
                refuse_changed(task.hparams, task.code)  # which would explain it
            raise
        try:  # again, now that nobody can settle the trial without its knowledge
            check_admitted(self._settings.ledger, task.trial, task.full_plan, digest)
            refuse_changed(task.hparams, task.code)  # its network was built meanwhile
        except BaseException:
            execution.close()
            raise
        return execution

    @property
    def _directory(self) -> FilePath:
        return file_path(self.config["directory"])

    def step(self) -> dict[str, Any]:
        """Run to the next report; returns ``{"done": .., "report": {..}}`` and the metrics.

        Raises:
            RayActorError: The process was told to leave (SIGTERM). Tune takes it for a preemption:
                the trial continues in another process, and its failures stay as many as they were.
        """
        self._is_busy = True
        if self._end is not None:
            self._end.cancel()
        try:
            if self._is_leaving and self._execution is None:
                raise Left
            report, has_shrunk = self._advance()
            if has_shrunk:  # outside of the handler, which holds on to the tensors
                report, _ = self._advance()
        except (Left, UnreachableError):  # another process goes on when there is a ledger
            self.cleanup()
            raise RayActorError(error_msg=LEFT, preempted=True) from None
        finally:
            self._is_busy = False
        if report.done:
            self.cleanup()
        return _result(report)

    def _advance(self) -> tuple[TrialReport, bool]:
        """Return the next report, and whether there is one more try instead of a failure.

        Whatever a trial's own code raises is a failure, also what is no ``Exception``: Tune would
        write its words to files, take it for a death of the process and pay for the trial again.
        """
        task = None
        try:
            if self._execution is None:
                task = read_task(self._directory / "trial.json")
                self._execution = self._open(task)
            self._execution.leaving.is_told |= self._is_leaving
            report = self._execution.advance()
            note = "\n".join(filter(None, (report.note, self._note)))
            return dataclasses.replace(report, note=note), False
        except BaseException as error:
            if is_signal(error) and not isinstance(error, SystemExit):  # none of ours is here
                error.args = ()  # words that a trial's own code may have put there
                raise error from None
            is_ours = is_own(error)
            if is_ours and isinstance(error, UnreachableError):
                raise
            report = self._failed(error)
            is_too_large = lacks_memory(error)
            self._is_leaving |= has_broken_device(error)  # its next trial needs another process
            if is_ours and isinstance(error, (StorageError, AbsentLedgerError)):
                report = dataclasses.replace(report, unwritten=error.message)
            if is_ours and isinstance(error, ChangedCodeError):
                report = dataclasses.replace(report, changed=error.message)
        if not is_too_large:
            return report, False
        self.cleanup()
        with suppress(SweepError):  # it cannot be noted: no second try
            task = task or read_task(self._directory / "trial.json")
            return report, make_smaller(self._directory, task, report.step)
        return report, False

    def _failed(self, error: BaseException) -> TrialReport:
        """Return the last report of the trial that an error has ended, with all it has spent."""
        report = _failure(self.config["trial"], error)
        if self._execution is None:
            return report
        return dataclasses.replace(
            report,
            step=self._execution.position,
            epsilon=self._execution.ledger.epsilon(),
            rung=self._execution.rung,
            charged=len(self._execution.ledger),
            value=self._execution.value,
            best_step=self._execution.best_step,
            delivered=self._execution.delivered,
            note=self._note,
        )

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

    def restore(self, checkpoint_path: Any) -> None:
        """Go on with a paused trial, whose own last checkpoint is restored when it is opened.

        Tune's copy is not read: its base class would unpickle a file that whoever writes to
        ``storage.path`` could have laid there.
        """
        metrics = getattr(checkpoint_path, "metrics", None) or {}
        self._iteration = metrics.get("training_iteration", 0)
        self._time_total = metrics.get("time_total_s", 0)
        self._time_since_restore, self._iterations_since_restore = 0.0, 0
        self._restored = True

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing to do: see ``restore``."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Close the trial; the next ``step`` opens the one that ``new_config`` names."""
        self.cleanup()
        return True

    def show_model(self, directory: str, part: str | None, max_classes: int) -> Shown | None:
        """Rebuild the best model of a finished trial; return what it predicts of a public part.

        This process has torch, which the driver would have to load. Words of an error stay here:
        they may quote a record.

        Raises:
            ModelError: It cannot be handed on from here.
        """
        from dpsweep.trainables.execution.finished.handing import FinishedModel

        self.cleanup()
        try:
            self._finished = FinishedModel(
                file_path(directory),
                study_seed=self._settings.study_seed,
                data=self._data,
                supplies=self._settings.supplies,
            )
            return None if part is None else self._finished.show(part, max_classes)
        except BaseException as error:
            if is_signal(error):
                raise
            raise ModelError("the model cannot be handed on from here") from None

    def graph_of_model(self) -> ModelGraph:
        """Return the graph of the model that ``show_model`` has rebuilt.

        Raises:
            ModelError: It cannot be handed on from here.
        """
        finished, self._finished = self._finished, None
        try:
            assert finished is not None
            # torch.export leaves the model in cycles, which are not searched for any more: this
            # process is asked for nothing else, and ends.
            with loading():
                return finished.graph()
        except BaseException as error:
            if is_signal(error):
                raise
            raise ModelError("the model cannot be handed on from here") from None

    def cleanup(self) -> None:
        """Release the trial's ledger."""
        if self._execution is not None:
            self._execution.close()
            self._execution = None
            if self._share.gpu:  # hooks tie a model to its engine, so it stays until this
                gc.collect()


def _execution() -> ModuleType:
    """Return the module that executes trials; it loads torch."""
    from dpsweep.trainables.execution import execution

    return execution


def _result(report: TrialReport) -> dict[str, Any]:
    return {"done": report.done, "report": dataclasses.asdict(report), **report.metrics}


def _failure(trial: int, error: BaseException) -> TrialReport:
    """Return the last report of a trial that an error has ended."""
    text = described(error)
    if lacks_memory(error):
        text = f"out of memory{text.removeprefix(type(error).__name__)}; {MEMORY_ADVICE}"
    is_violation = isinstance(error, (BudgetExceededError, LedgerError)) and is_own(error)
    if is_violation and not isinstance(error, (LockedError, AbsentLedgerError)):
        text = f"privacy violation: {text}"
    return TrialReport(
        trial=trial, step=0, metrics={}, epsilon=0.0, done=True, reason=text, failure=text
    )


def bundle_of(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Return what Tune reserves for a trial; an actor goes on with trials of the same alone."""
    return tune.PlacementGroupFactory([{"CPU": config["cpu"], "GPU": config["gpu"]}])

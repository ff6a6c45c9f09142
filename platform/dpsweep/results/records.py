"""Records that a study is read from: its own files, or its runs in a tracking store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dpsweep.foundation.errors import CheckpointError, SweepError
from dpsweep.foundation.logs import is_locked, read_log
from dpsweep.results.claims import Claims
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView
from dpsweep.study.launched import launched_spec
from dpsweep.study.trial import TrialTask
from dpsweep.tracking.state import read_run_ids
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.execution.checkpoint_files import find


class Records(Protocol):
    """The records of one study, wherever they are kept.

    ``source`` says where they were read, in a line that stands beside every result; empty for the
    study's own files, which are the authority. ``incomplete`` are the ended trials whose
    configurations may not be whole there.
    """

    name: str

    @property
    def source(self) -> str:
        """Words on where they were read."""

    @property
    def incomplete(self) -> Sequence[int]:
        """Numbers of trials."""

    @property
    def files(self) -> StudyFiles:
        """The study's files; StudyError where they are not on this machine."""

    def spec(self) -> SweepSpec:
        """Return the frozen spec."""

    def view(self) -> StudyView:
        """Return how the study stands."""

    def claims(self, spec: SweepSpec, view: StudyView) -> Claims:
        """Return what may be said of its privacy."""

    def is_running(self) -> bool:
        """Say whether a process may be running it, of a study that has not ended."""

    def run_ids(self) -> Mapping[int, str]:
        """Return the tracking run of each trial."""

    def model_uri(self, trial: int, logged: str | None) -> str | None:
        """Return where a trial's model is: in the store if it was logged, else its checkpoint."""

    def model_damage(self, trial: int) -> str:
        """Say what is wrong with the files of a trial's model; empty if nothing is known."""

    def task(self, trial: int) -> TrialTask:
        """Return an admitted trial with its plan."""

    def journal(self) -> Sequence[Mapping[str, Any]]:
        """Return the lines of its journal."""


class LocalRecords:
    """A study's own directory; reading needs neither Ray nor the tracking store.

    Args:
        files: Of the study.
    """

    source = ""
    incomplete: Sequence[int] = ()

    def __init__(self, files: StudyFiles) -> None:
        self._files, self.name = files, files.name

    @property
    def files(self) -> StudyFiles:
        """The study's files; StudyError once their folder has gone."""
        return self._files.there()

    def spec(self) -> SweepSpec:
        """Return the frozen spec."""
        return launched_spec(self.files)

    def view(self) -> StudyView:
        """Return what the journal says now."""
        return self.files.view()

    def claims(self, spec: SweepSpec, view: StudyView) -> Claims:
        """Return what its ledgers allow to be said."""
        return Claims(self.files, spec, view)

    def is_running(self) -> bool:
        """Say whether a process holds the study."""
        return is_locked(self.files.lock)

    def run_ids(self) -> Mapping[int, str]:
        """Return the tracking run of each trial, as the last launch noted it."""
        return read_run_ids(self.files.tracking)

    def model_uri(self, trial: int, logged: str | None) -> str | None:
        """Return the logged model, else the best checkpoint's file if it is there."""
        checkpoint = self.files.trial(trial) / "best.json"
        return checkpoint.as_uri() if logged is None and checkpoint.exists() else logged

    def model_damage(self, trial: int) -> str:
        """Say what is wrong with the files of a trial's best model; empty if nothing is."""
        try:
            find(self.files.trial(trial), "best")
        except CheckpointError as error:
            return error.message
        return ""

    def task(self, trial: int) -> TrialTask:
        """Return an admitted trial."""
        return self.files.task(trial)

    def journal(self) -> Sequence[Mapping[str, Any]]:
        """Return the lines of the journal."""
        return read_log(self.files.journal)


def looked_at(records: Records, view: StudyView | None = None) -> tuple[StudyView, bool]:
    """Return how a study stands, and whether a process runs it, both of one moment.

    Args:
        records: Of the study.
        view: Its journal's, where that is in hand.
    """
    first = view or records.view()
    if first.state != "running" or records.is_running():
        return first, True
    return records.view(), False  # it may have ended between the two looks


def shown_hyperparameters(task: TrialTask) -> dict[str, Any]:
    """Return the hyperparameters of a trial, as journal and results show them.

    Of nulls those for which a default would stand in; of a method that is not installed, all.
    """
    declared = declared_by(task.method)
    if declared is None:
        return dict(task.hparams)
    otherwise_set = {parameter.name for parameter in declared if parameter.default is not None}
    return {
        name: value
        for name, value in task.hparams.items()
        if value is not None or name in otherwise_set
    }


def declared_by(method: str) -> tuple[Hyperparameter, ...] | None:
    """Return the hyperparameters of a method; None where its package is not installed here."""
    try:
        declared: tuple[Hyperparameter, ...] = TRAINABLES[method].hyperparameters
    except SweepError:
        return None
    return declared

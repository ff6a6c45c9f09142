"""Origins of a study's trials: where its data are, public weights, and releases of its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import CheckpointError, DataError, StudyError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.ledgers.trial import read_records, releases_of, trial_file, trial_spent
from dpsweep.privacy.events import Plan
from dpsweep.spec.facts import file_of
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.study.trial import TrialState
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.releases import Release, ReleaseKey
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.execution.checkpoint_files import LOST_RELEASE, find
from dpsweep.trainables.execution.starts import Starts, release_name

if TYPE_CHECKING:
    from dpsweep.spec.start import StartSpec
    from dpsweep.spec.study import SweepSpec
    from dpsweep.study.files import StudyFiles
    from dpsweep.study.journal import StudyView
    from dpsweep.study.trial import TrialTask


@contextmanager
def reading_data(spec: SweepSpec) -> Iterator[None]:
    """Say of data that are not there whether the study was launched in another directory.

    Raises:
        DataError: As it was raised within, or with that reason.
    """
    try:
        yield
    except DataError as error:
        path = spec.data.path
        if path is None or Path(path).expanduser().is_absolute() or Path(path).exists():
            raise
        raise DataError(
            error.message,
            because=f"data.path of study {spec.name!r} begins where it was launched",
            fix="type this in that directory",
        ) from error


def weights_path(spec: SweepSpec, view: StudyView) -> FilePath | None:
    """Return where the weights of a study that has begun are; None if it has none."""
    block = spec.pretrain
    if block is None or view.pretrained is None:
        return None
    if block.checkpoint is not None:
        return file_of(block)
    store = spec.storage.pretrained_path  # a bucket names weights by their content
    name = view.pretrained["sha256" if isinstance(store, BucketPath) else "address"]
    return store / f"{name}.safetensors"


def find_starts(spec: SweepSpec, files: StudyFiles) -> Starts | None:
    """Return the releases of a study whose start has run; None without a start.

    Raises:
        StudyError: A release is not on the ledger of its run.
        CheckpointError: The model of one is damaged or missing: every trial would fail on it.
    """
    block = spec.start
    if block is None:
        return None
    for (run, epsilon), index, _ in _on_record(spec, block, files):
        if find(files.trial(run), release_name(index)) is None:
            raise CheckpointError(
                f"{files.trial(run)} has no {release_name(index)}, the model at {epsilon:g}",
                fix=LOST_RELEASE,
            )
    releases = {
        key: Release(files.trial(key[0]), release_name(index), record["sha256"])
        for key, index, record in _on_record(spec, block, files)
    }
    return Starts(
        resolve(TRAINABLES[block.method].hyperparameters, block.hyperparameters), releases
    )


def supplies_of(spec: SweepSpec, files: StudyFiles, view: StudyView) -> Supplies:
    """Return what a study that has run has besides records: features, weights, released models.

    Raises:
        StudyError: A release is not on the ledger of its run.
        CheckpointError: The model of one is damaged or missing.
    """
    features, weights = spec.storage.features_path, weights_path(spec, view)
    return Supplies(features, weights, find_starts(spec, files))


def charged_starts(spec: SweepSpec, files: StudyFiles) -> dict[ReleaseKey, Plan]:
    """Return the events of every release as the ledgers have them, lost attempts included.

    Raises:
        StudyError: A release is not on the ledger of its run.
        LedgerError: A ledger is damaged, or holds less than was charged.
    """
    block = spec.start
    if block is None:
        return {}
    plans = {}
    for key, _, record in _on_record(spec, block, files):
        spent = trial_spent(files.ledger, key[0], at_least=record["charged"])
        plans[key] = spent.slice(0, record["charged"]).part("private").merged()
    return plans


def _on_record(
    spec: SweepSpec, block: StartSpec, files: StudyFiles
) -> Iterator[tuple[ReleaseKey, int, Mapping[str, Any]]]:
    """Yield every release with its number and what the ledger of its run says of it."""
    for run in range(block.runs):
        made = releases_of(read_records(trial_file(files.ledger, run)))
        for index, epsilon in enumerate(block.epsilons):
            if index not in made:
                raise StudyError(
                    f"the start of study {spec.name!r} has not released a model at {epsilon:g}",
                    because=f"the ledger of trial {run} has no such record",
                    fix="restore it, or start a new study under another name",
                )
            yield (run, epsilon), index, made[index]


def unfinished_starts(view: StudyView, tasks: Sequence[TrialTask]) -> list[TrialTask]:
    """Return the runs that have not ended.

    Raises:
        SweepError: One has ended without releasing what it was to release.
    """
    left = []
    for task in tasks:
        trial = view.trials.get(task.trial)
        if trial is None or trial.state is TrialState.RUNNING:
            left.append(task)
        elif trial.state is not TrialState.FINISHED:
            raise SweepError(
                f"run {task.trial} of the start has {trial.state.value}: {trial.reason}",
                fix="correct the cause, and start a new study under another name; what this one "
                "has spent stays spent",
            )
    return left

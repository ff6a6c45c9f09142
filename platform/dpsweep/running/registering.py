"""Registering of a trial's model: in MLflow's registry, for whoever has raw records alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import BadInputError, StudyError, SweepError
from dpsweep.foundation.file_paths import cache, sha256_of
from dpsweep.foundation.validate import of_kind
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.results.choosing import By, Limits
from dpsweep.results.origins import reading_data, supplies_of
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.results.tracked.study import is_stored
from dpsweep.results.trial import TrialResult
from dpsweep.running.entries import label_of
from dpsweep.study.study import is_data_of
from dpsweep.study.trial import TrialState
from dpsweep.tracking.mlflow_models import logged_name
from dpsweep.tracking.registry.loading import ServedModel, load_directory
from dpsweep.tracking.registry.package import Package
from dpsweep.tracking.registry.versions import CHAMPION, ModelRegistry, check_names
from dpsweep.trainables.data.class_split import open_classes
from dpsweep.trainables.data.kept.files import locked
from dpsweep.trainables.data.loading import load_records
from dpsweep.trainables.data.raw import preparation
from dpsweep.trainables.execution.finished.trials import export_model
from dpsweep.trainables.execution.trial_data import records_for

_PACKAGES = {"array": (), "image": ("pillow",), "text": ("transformers", "tokenizers")}


@dataclass(frozen=True)
class RegisteredModel:
    """A version in MLflow's registry.

    Attributes:
        name: Of the registered model.
        version: Number of the version.
        alias: What it is called besides.
        study: Name of the study.
        trial: Number of the trial.
        is_new: Whether the version was made now; else it was there.
        moved_from: The version that had the alias before; None where no other one had it.
        claim: What may be claimed of the model, search included; None where nothing may.
        alone: The epsilon of the trial alone, which is the claim only where it equals that.
    """

    name: str
    version: int
    alias: str
    study: str
    trial: int
    is_new: bool
    moved_from: int | None
    claim: PrivacyStatement | None
    alone: PrivacyStatement

    @property
    def uri(self) -> str:
        """Address for ``mlflow.pyfunc.load_model``; it is of whichever version has the alias."""
        return f"models:/{self.name}@{self.alias}"

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep register -f json`` prints (a stable interface)."""
        keys = ("name", "version", "alias", "uri", "study", "trial", "is_new", "moved_from")
        return {
            **{key: getattr(self, key) for key in keys},
            "claim": None if self.claim is None else self.claim.to_record(),
            "trial_alone": {**self.alone.to_record(), "is_the_claim": self.alone == self.claim},
        }


def register_model(
    study: str | SweepResult,
    trial: int | None = None,
    *,
    name: str | None = None,
    alias: str = CHAMPION,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
    method: str | None = None,
    limits: Limits | None = None,
    by: By = "trial",
    root: str | Path | None = None,
    tracking_uri: str | None = None,
) -> RegisteredModel:
    """Register the model of a trial in MLflow's registry, with the claim of its study.

    The version is an ``mlflow.pyfunc`` model of raw records (docs/results.md). It needs torch and
    MLflow (for texts transformers, too), neither dpsweep nor the study's files.

    Guarantees:
        Inputs of its network are bit for bit those that the trial read of the same records. It
        holds the released model, public facts and zeros, and no record. The version has its claim,
        with all terms, from the moment it can be seen, and loses it when the study does; the
        epsilon of the trial alone is never shown as the claim. Under ``select`` only the winner is
        registered, under ``public`` only the final run. The same trial under the same name makes no
        second version. Not covered: copies of a version, and whoever may write to the store.

    Args:
        study: Name of the study, or its results.
        trial: Number of a finished trial; None: the best one.
        name: Of the registered model; None: that of the study.
        alias: Given to the version, and taken from the one that has it.
        max_epsilon: Largest epsilon of a trial alone that the best one is chosen from, as
            ``SweepResult.best`` takes it.
        max_delta: Largest delta.
        method: Training method.
        limits: These three as one, in their place.
        by: How it is chosen (``SweepResult.best``).
        root: Where the study is, as ``load_sweep`` takes it.
        tracking_uri: Of the store; None: the study's.
    Raises:
        BadInputError: The study runs, the trial has not finished or is not released, its data are
            not those it was launched on, or the store has no registry, no such run, or refuses.
        NothingWithinBudgetError: No trial has finished within the limits.
        CheckpointError: The trial's best checkpoint is damaged.
    """
    if isinstance(study, str):
        store = tracking_uri if is_stored(study) else None
        study = load_sweep(study, root=root, tracking_uri=store)
    result = study
    of_kind("a model is registered of a study", result, SweepResult, "give its name")
    own = Limits(max_epsilon, max_delta, method)
    if limits is not None and own != Limits():
        raise BadInputError(
            "limits stand beside max_epsilon, max_delta or method, which they have in them",
            fix="leave limits out",
        )
    chosen = chosen_trial(result, trial, own if limits is None else limits, by)
    model = result.name if name is None else name
    check_names(model, alias)
    uri = _store_of(result, tracking_uri)
    if chosen.run_id is None:
        raise StudyError(
            f"trial {chosen.trial_id} of study {result.name!r} has no run in a tracking store",
            fix="if the run was deleted in MLflow, restore it there; then run the study's command "
            "again, which delivers what the store lacks",
        )
    registry, label = ModelRegistry(uri, chosen.run_id), label_of(result, chosen.trial_id)
    logged = f"{logged_name(result.name, chosen.trial_id)}-registered"
    if registry.version_of(model) is None:
        with _package(result, chosen.trial_id) as package, _one_at_a_time(chosen.run_id):
            placed = registry.place(model, alias, package, logged)
    else:
        for problem in registry.label(label):
            raise BadInputError(problem, fix="run the command again")
        placed = registry.place(model, alias, None, logged)
    return RegisteredModel(
        model,
        placed.version,
        alias,
        result.name,
        chosen.trial_id,
        placed.is_new,
        placed.moved_from,
        chosen.study_statement,
        chosen.statement,
    )


def open_model(result: SweepResult, trial: int | None = None) -> ServedModel:
    """Return what ``register_model`` would register, loaded as its user would; no registry is
    asked.

    Args:
        result: The study.
        trial: Number of a finished trial; None: the best one.
    Raises:
        SweepError: As ``register_model``.
    """
    chosen = chosen_trial(result, trial)
    with _package(result, chosen.trial_id) as package, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        package.save(path, {})
        return load_directory(path, f"trial {chosen.trial_id} of {result.name}")


def chosen_trial(
    result: SweepResult, trial: int | None, limits: Limits | None = None, by: By = "trial"
) -> TrialResult:
    """Return the trial whose model is handed on.

    Raises:
        BadInputError: It may not be, or not yet; or it is named beside what would choose it.
        NothingWithinBudgetError: No trial has finished within the limits.
    """
    if trial is not None and (limits not in (None, Limits()) or by != "trial"):
        raise BadInputError(
            f"trial {trial} is named, so there is none to choose",
            fix="leave the number out, or what chooses: max_epsilon, max_delta, method and by "
            "(`--max-epsilon`, `--max-delta`, `--method`, `--by`)",
        )
    if result.source:  # its claim would be what tags of the store say
        raise StudyError(
            f"study {result.name!r} was read from a tracking store, and its files are not here",
            fix="hand the model on where the study ran; versions are asked as models:/NAME@ALIAS",
        )
    if result.spec.data.task == "causal_lm":
        raise BadInputError(
            f"study {result.name!r} trains language models, which answer in tokens, not in classes",
            fix="load the network itself: mlflow.pytorch.load_model(best.model_uri)",
        )
    if result.state == "running":
        raise StudyError(
            f"study {result.name!r} is running, and what it delivers may change",
            fix="wait until it has finished: `dpsweep status` shows it",
        )
    if trial is None:
        return result.choose(limits, by=by).best
    chosen = result.trial(trial)
    is_public = result.spec.privacy.mode.is_public_search
    if is_public and not result.claims.is_final(result.view.trials[trial]):
        raise BadInputError(
            f"trial {trial} of study {result.name!r} is not its final run, the only one that a "
            "study of accounting public hands on",
            fix="leave the number out",
        )
    if chosen.state is not TrialState.FINISHED or chosen.value is None:
        state = result.state_of(chosen)
        raise BadInputError(
            f"trial {trial} of study {result.name!r} delivers no model: it is {state}",
            fix="name a finished trial: `dpsweep status` shows them",
        )
    return chosen


def _store_of(result: SweepResult, tracking_uri: str | None) -> str:
    """Return the tracking store of a study.

    Raises:
        StudyError: It has none, or one of another kind.
        BadInputError: ``tracking_uri`` is no text.
    """
    fix = 'tracking_uri="sqlite:///mlflow.db", or the address of a server'
    of_kind("a store is opened by its address", tracking_uri, (str, type(None)), fix)
    tracking = result.spec.tracking
    uri = tracking_uri or tracking.uri
    if uri is None or tracking.kind != "mlflow":
        store = "no tracking store" if uri is None else f"a tracking store of kind {tracking.kind}"
        raise StudyError(
            f"study {result.name!r} has {store}, so there is no registry for its models",
            fix="`dpsweep predict` needs none; a new study can have tracking.uri: "
            "sqlite:///mlflow.db",
        )
    return str(uri)


@contextmanager
def _one_at_a_time(run_id: str) -> Iterator[None]:
    """Wait for whatever other process of this user makes a version of the same trial."""
    with ExitStack() as stack:
        with suppress(SweepError):  # no home, or one without locks
            place = cache("registering") / f"{sha256_of(run_id.encode())}.lock"
            stack.enter_context(locked(place))
        yield


@contextmanager
def _package(result: SweepResult, trial: int) -> Iterator[Package]:
    """Yield the model of a trial, rebuilt from its best checkpoint, with all that it needs."""
    spec, files, task = result.spec, result.files, result.task(trial)
    with reading_data(spec):
        data = load_records(spec)
    if not is_data_of(files, data.content_hash, data.old_hash):
        raise StudyError(
            f"the data of study {result.name!r} are not those that it was launched on, so their "
            "classes may be others",
            fix="restore the data",
        )
    supplies = supplies_of(spec, files, result.view)
    directory = files.trial(trial)
    network, inputs = export_model(
        directory, task, study_seed=spec.seed, data=data, supplies=supplies
    )
    prepared = open_classes(spec.data).prepared_by
    info = records_for(data, task).info
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "preparation")
        folder.mkdir()
        shutil.copy(str(preparation.__file__), folder)
        preparation.save(prepared, folder, classes=list(info.class_names), task=info.task)
        yield Package(
            network,
            inputs,
            folder,
            prepared.zero,
            info.class_names,
            info.task,
            _PACKAGES[prepared.kind],
            label_of(result, trial),
        )

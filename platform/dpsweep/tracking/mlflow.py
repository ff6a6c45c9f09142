"""MLflowTracker: one parent run per study, a child per trial; only ``mlflow_models`` beside it
touches MLflow.

Stateless client calls only: no global active run, so a program may use MLflow beside a sweep.
"""

from __future__ import annotations

import getpass
import logging
import os
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.durable import damage_of_sqlite, set_aside
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.version import __version__
from dpsweep.spec.tracking import database_of
from dpsweep.tracking.base import StoreDamagedError, TrackingRefusedError
from dpsweep.tracking.drafts import MetricPoint, RunUpdate
from dpsweep.tracking.mlflow_models import DESCRIPTION, LoggedModels, fitting, fitting_text
from dpsweep.tracking.model_label import (
    ModelLabel,
)
from dpsweep.tracking.state import PRETRAIN_ROLE, PRETRAINING, TrackingState, name_of
from dpsweep.tracking.updates import Event, read_events

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# Limits of one log_batch request and of single values, from MLflow's REST API.
_METRICS_PER_BATCH = 900
_PAIRS_PER_BATCH = 100
_MAX_PARAM = 6000

# The spool retries with its own backoff, so a request may fail soon; nothing is sent to MLflow's
# makers; nothing is printed over the progress display.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# Opens the views for training runs; without it MLflow may take a sweep for a chat application.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_MODELS = "models:/"
_SEQ = "dpsweep.seq"  # tells an older copy of a store from the store
_PERMANENT = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def _quiet() -> None:
    """Configure MLflow by environment before its first import, keeping what the user set."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # SQLAlchemy 2.1 deprecates an option that MLflow still uses; users can do nothing about it.
    warnings.filterwarnings("ignore", message="The ``noload`` loader strategy is deprecated")


class MLflowTracker:
    """Runs in an MLflow store, kept up to date from journal events.

    Guarantees:
        Handling the same events again changes nothing, and no trial ever gets a second run: runs
        carry the study's id as a tag and are searched for before they are created, so a process
        may be killed between creating a run and writing its id down. Only values that
        ``dpsweep.tracking.schema`` lets pass are sent.

    Args:
        uri: Tracking URI: ``sqlite:///file`` or a server's address.
        experiment: Name of the experiment; created if missing.
        state_path: Where run ids and progress are kept between launches.
    Raises:
        BadInputError: The URI is a file store, or the experiment is deleted.
    """

    def __init__(self, uri: str, experiment: str, state_path: Path) -> None:
        if uri.startswith("file:") or ":/" not in uri:
            raise BadInputError(
                f"tracking.uri {uri!r} is a file store, which MLflow no longer maintains",
                fix='use "sqlite:///mlflow.db" or the address of a tracking server',
            )
        _quiet()
        from mlflow import MlflowClient

        self._uri, self._path, self.notes = uri, state_path, list[str]()
        if TrackingState.is_damaged(state_path):
            self._note(f"{state_path} is damaged")
            if state_path.is_dir():
                set_aside(state_path)
        with self._explained():
            self._client: MlflowClient = MlflowClient(tracking_uri=uri)
            self._experiment_id = self._find_experiment(uri, experiment)
            self._models = LoggedModels(self._client, uri, self._experiment_id)
            self._resume(f"{uri}#{self._experiment_id}")

    def _resume(self, store: str) -> None:
        """Find out how far the store is; what it lacks is delivered from the journal's start."""
        self._state = TrackingState.load(self._path)
        if self._state.store != store:
            # Another store: its runs are found again by tag, or made anew from the whole journal.
            self._state = TrackingState(store=store)
        self._is_synced = False
        if not self._state.study_id:
            return
        self._sync(self._state)
        if self._state.parent_run_id is None:
            self._begin_again("the store does not know this study any more", store)
            return
        tags = self._client.get_run(self._state.parent_run_id).data.tags
        if int(tags.get(_SEQ, self._state.seq)) < self._state.seq:
            self._begin_again("the store is an older copy of itself", store)

    def _begin_again(self, why: str, store: str) -> None:
        self._note(why)
        self._state, self._is_synced = TrackingState(store=store), False

    def _note(self, what: str) -> None:
        self.notes.append(f"{what}; all events of the journal are delivered again, none twice")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of an error of the store whether its file is damaged."""
        try:
            yield
        except Exception as error:  # whatever MLflow and SQLAlchemy raise
            path, damage = database_of(self._uri), ""
            if path is not None and path.is_file():
                with suppress(sqlite3.OperationalError):  # busy, and not damaged
                    damage = damage_of_sqlite(path)
            if not damage:
                raise
            raise StoreDamagedError(
                f"tracking store {path} is damaged ({damage})",
                fix="restore it, or move it away and run the same command again, which delivers "
                "the whole journal to a new one; runs of other studies in it come back in the same "
                "way",
            ) from error

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event that is in the store, -1 if none is known."""
        return self._state.seq

    @property
    def parent_run_id(self) -> str | None:
        """Run of the study."""
        return self._state.parent_run_id

    def run_id_of(self, trial: int) -> str | None:
        """Return the run of a trial, or None if it has none."""
        return self._state.run_ids.get(trial)

    def close(self) -> None:
        """Nothing to release: the client holds no connection between calls."""

    def handle(self, events: Sequence[Event]) -> None:
        """Bring the store up to date; see ``Tracker.handle``."""
        reading = read_events(self._state, events)
        state, refused = reading.state, reading.refused
        if state.seq == self._state.seq:
            return
        try:
            with self._explained():
                if state.study_id and not self._is_synced:
                    self._sync(state)
                for update in reading.updates:
                    self._apply(update, state, refused)
                if state.parent_run_id is not None:
                    self._client.set_tag(state.parent_run_id, _SEQ, state.seq)
        except BaseException:
            # A request may have succeeded although its answer was lost: look before the next try.
            self._is_synced = False
            raise
        state.save(self._path)
        self._state = state
        if refused:
            raise TrackingRefusedError(refused)

    def _find_experiment(self, uri: str, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            location = None
            database = database_of(uri)
            if database is not None:  # beside the database, not in the current directory
                location = (database.parent / "mlartifacts" / name).as_uri()
            try:
                return str(self._client.create_experiment(name, location, _EXPERIMENT_TAGS))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:  # else another process was faster
                    raise
        if experiment.lifecycle_stage == "deleted":
            raise BadInputError(
                f"experiment {name!r} is deleted in {uri}",
                fix=f"mlflow experiments restore --experiment-id {experiment.experiment_id}, "
                "or choose another tracking.experiment",
            )
        return str(experiment.experiment_id)

    def _runs_of_study(self, study_id: str) -> Iterator[Run]:
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                filter_string=f"tags.`dpsweep.study_id` = '{study_id}'",
                max_results=1000,
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def _sync(self, state: TrackingState) -> None:
        """Take the run ids from the store, which knows best what exists."""
        state.parent_run_id, state.run_ids = None, {}
        for run in self._runs_of_study(state.study_id):
            trial = run.data.tags.get("dpsweep.trial")
            if run.data.tags.get("dpsweep.role") == PRETRAIN_ROLE:
                state.run_ids[PRETRAINING] = run.info.run_id
            elif trial is None:
                state.parent_run_id = run.info.run_id
            else:
                state.run_ids[int(trial)] = run.info.run_id
        self._is_synced = True

    def _apply(self, update: RunUpdate, state: TrackingState, refused: list[str]) -> None:
        from mlflow.exceptions import MlflowException

        of = name_of(update.trial)
        run_id = state.parent_run_id if update.trial is None else state.run_ids.get(update.trial)
        if run_id is None and not update.opens:
            refused.append(f"{of}: its run was deleted in MLflow; later values are not logged")
            return
        try:
            if run_id is None:
                run_id = self._create(update, state)
            elif update.opens:
                self._client.update_run(run_id, status="RUNNING")
            self._log(run_id, of, update, refused)
            self._store_files(run_id, of, update, refused)
            if update.status is not None:
                self._client.set_terminated(run_id, update.status, update.end_ms)
            uri = state.model_uris.get(update.trial) if update.trial is not None else None
            if "dp.downgraded" in update.tags and uri is not None:
                reason = update.tags["dp.downgraded"]
                refused += self._models.give_up_claim(uri.removeprefix(_MODELS), reason)
        except MlflowException as error:
            if error.error_code not in _PERMANENT:
                raise
            refused.append(f"{of}: refused by MLflow: {error.message}")

    def _create(self, update: RunUpdate, state: TrackingState) -> str:
        tags = {
            "mlflow.user": _user(),
            "mlflow.source.name": f"dpsweep {__version__}",
            "mlflow.source.type": "LOCAL",
            # Among them the study's id and the trial, by which a lost run is found again.
            **fitting(update.tags),
        }
        name = state.study
        if update.trial is not None:
            is_trial = update.trial != PRETRAINING
            name = f"trial-{update.trial:04d}" if is_trial else PRETRAIN_ROLE
            if state.parent_run_id is None:
                raise RuntimeError("a trial started before its study")
            tags["mlflow.parentRunId"] = state.parent_run_id
        run = self._client.create_run(
            self._experiment_id, start_time=update.start_ms, tags=tags, run_name=name
        )
        run_id = str(run.info.run_id)
        if update.trial is None:
            state.parent_run_id = run_id
        else:
            state.run_ids[update.trial] = run_id
        return run_id

    def _log(self, run_id: str, of: str, update: RunUpdate, refused: list[str]) -> None:
        from mlflow.entities import Param, RunTag

        tags = fitting(update.tags)
        if "privacy_card.md" in update.texts:
            tags[DESCRIPTION] = fitting_text(update.texts["privacy_card.md"])
        params = {}
        for name, text in update.params.items():
            if len(text) > _MAX_PARAM:
                refused.append(f"{of}: param {name!r} is longer than {_MAX_PARAM} characters")
            else:
                params[name] = text
        pairs_of_params = [Param(name, text) for name, text in params.items()]
        pairs_of_tags = [RunTag(name, text) for name, text in tags.items()]
        points = [_metric(point) for point in update.metrics]
        while points or pairs_of_tags:
            self._client.log_batch(
                run_id, metrics=points[:_METRICS_PER_BATCH], tags=pairs_of_tags[:_PAIRS_PER_BATCH]
            )
            points = points[_METRICS_PER_BATCH:]
            pairs_of_tags = pairs_of_tags[_PAIRS_PER_BATCH:]
        while pairs_of_params:
            self._log_params(run_id, of, pairs_of_params[:_PAIRS_PER_BATCH], refused)
            pairs_of_params = pairs_of_params[_PAIRS_PER_BATCH:]

    def _log_params(self, run_id: str, of: str, params: list[Any], refused: list[str]) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(run_id, params=params)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            # MLflow never changes a param: keep the first value, log the new ones, say so.
            before = self._client.get_run(run_id).data.params
            for param in params:
                old = before.get(param.key, param.value)
                if old != param.value:
                    refused.append(
                        f"{of}: MLflow keeps showing {param.key!r} as it was first, {old!r}; it is "
                        f"{param.value!r} now"
                    )
            new = [param for param in params if param.key not in before]
            self._client.log_batch(run_id, params=new)

    def _store_files(self, run_id: str, of: str, update: RunUpdate, refused: list[str]) -> None:
        for name, text in update.texts.items():
            self._client.log_text(run_id, text, name)
        for path in map(Path, update.artifacts):
            if path.is_dir():
                self._client.log_artifacts(run_id, str(path), path.name)
            elif path.exists():
                self._client.log_artifact(run_id, str(path))
            else:
                refused.append(f"{of}: artifact {path} does not exist")

    def log_model(self, trial: int, model: Any, input_example: Any, label: ModelLabel) -> str:
        """Store a trial's model once, as a ``torch.export`` graph; return its URI.

        The format holds a graph and tensors, no pickled code, so
        ``mlflow.pytorch.load_model(uri)`` needs neither this package nor trust in the file. The
        first dimension of the input is the batch and stays free.

        Raises:
            BadInputError: The trial has no run.
        """
        run_id = self._state.run_ids.get(trial)
        if run_id is None:
            raise BadInputError(f"trial {trial} has no tracking run, so its model is not logged")
        name = f"{self._state.study}-trial-{trial:04d}"
        model_id = self._models.store(name, run_id, model, input_example, label)
        self._models.link(model_id, run_id, self._state.parent_run_id)
        self._state.model_uris[trial] = f"{_MODELS}{model_id}"
        self._state.save(self._path)
        self.label_model(trial, label)
        return self._state.model_uris[trial]

    def has_model(self, trial: int) -> bool:
        """Say whether a trial's model is in the store."""
        run_id = self._state.run_ids.get(trial)
        return run_id is not None and self._models.is_stored(run_id)

    def label_model(self, trial: int, label: ModelLabel) -> None:
        """Give a trial's logged model the label that holds now, in the store and in its files."""
        uri, run_id = self._state.model_uris.get(trial), self._state.run_ids.get(trial)
        if uri is not None and run_id is not None:
            self._models.label(uri.removeprefix(_MODELS), run_id, label)


def _user() -> str:
    """Return who runs this; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"


def _metric(point: MetricPoint) -> Any:
    from mlflow.entities import Metric

    return Metric(point.name, point.value, point.time_ms, point.step)

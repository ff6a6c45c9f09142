"""MLflowTracker: one parent run per study, a child per trial; only ``mlflow_models`` beside it
touches MLflow.

Stateless client calls only: no global active run, so a program may use MLflow beside a sweep.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.durable import damage_of_sqlite
from dpsweep.foundation.errors import MAKE_ROOM, BadInputError
from dpsweep.foundation.file_paths import FilePath, set_aside
from dpsweep.foundation.process.loading import loaded_whole
from dpsweep.spec.tracking import database_of, masked
from dpsweep.study.model_graph import ModelGraph
from dpsweep.tracking.base import (
    ExperimentDeletedError,
    StoreDamagedError,
    StoreRefusedError,
    TrackingRefusedError,
)
from dpsweep.tracking.drafts import RunUpdate
from dpsweep.tracking.mlflow_database import prepare_database
from dpsweep.tracking.mlflow_models import (
    DESCRIPTION,
    LoggedModels,
    fitting_text,
    logged_name,
    write_model,
)
from dpsweep.tracking.mlflow_reach import (
    CREDENTIALS,
    find_experiment,
    quiet,
    refusal,
    refuse_credentials,
    refuse_unreachable,
    store_of,
)
from dpsweep.tracking.mlflow_runs import RunWriter, StudyRuns, runs_of_study
from dpsweep.tracking.model_label import ModelLabel
from dpsweep.tracking.state import SEQ, TrackingState, name_of, seq_of
from dpsweep.tracking.updates import Event, read_events
from dpsweep.tracking.views import VIEW_TAG, saved_view, view_key, with_links

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MODELS = "models:/"
_PERMANENT = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


class MLflowTracker:
    """Runs in an MLflow store, kept up to date from journal events.

    Guarantees:
        Handling the same events again changes nothing, and no trial gets a second run under one
        run of its study, not even in place of a deleted one: runs carry the study's id as a tag
        and are searched for before they are created, so a process may be killed between creating
        a run and writing its id down. A study whose own run was deleted, and is not restored by
        the next launch, gets another one, with other runs in place of deleted ones; those that
        are restored later get the label of a lost claim, and nothing else. Only values that
        ``dpsweep.tracking.schema`` lets pass are sent.

    Args:
        uri: Tracking URI: ``sqlite:///file`` or a server's address.
        experiment: Name of the experiment; created if missing.
        state_path: Where run ids and progress are kept between launches.
    Raises:
        BadInputError: The URI is a file store, its credentials cannot be sent, or the experiment is
            deleted: of a study that has runs ``handle`` raises it, once its models are labelled.
    """

    #: ``log_model`` takes a ``ModelGraph``, too.
    takes_graphs = True
    #: MLflow's own code takes half a core where trials are short.
    runs_apart = True

    def __init__(self, uri: str, experiment: str, state_path: FilePath) -> None:
        if uri.startswith("file:") or ":/" not in uri:
            raise BadInputError(
                f"tracking.uri {masked(uri)!r} is a file store, which MLflow no longer maintains",
                fix='use "sqlite:///mlflow.db" or the address of a tracking server',
            )
        refuse_credentials(uri)
        quiet()
        with loaded_whole("mlflow"):  # in a thread, beside other imports, it may fail
            from mlflow import MlflowClient

        self._uri, self._path, self.notes = uri, state_path, list[str]()
        if TrackingState.is_damaged(state_path):
            self._note(f"{state_path} is damaged")
            if state_path.is_dir():
                set_aside(state_path)
        with self._explained():
            prepare_database(uri)
            self._client: MlflowClient = MlflowClient(tracking_uri=uri)
            self._state = TrackingState.load(state_path)
            self._writer, self._runs = RunWriter(self._client), StudyRuns()
            self._deleted: ExperimentDeletedError | None = None
            store, _, self._experiment_id = self._state.store.rpartition("#")
            try:
                self._experiment_id, notes = find_experiment(
                    self._client, uri, self._state, experiment
                )
                self.notes += notes
            except ExperimentDeletedError as error:
                if store != masked(uri) or not self._state.run_ids:
                    raise
                self._deleted = error  # its models may be registered: see `handle`
            self._models = LoggedModels(self._client, uri, self._experiment_id)
            if self._deleted is None:
                self._resume(store_of(uri, self._experiment_id), experiment)

    @classmethod
    def refuse_unreachable(cls, uri: str, experiment: str) -> None:
        """Refuse a server that cannot take a new study's runs; see ``mlflow_reach``."""
        refuse_unreachable(uri, experiment)

    def _resume(self, store: str, experiment: str) -> None:
        """Find out how far the store is; what it lacks is delivered from the journal's start."""
        blank = TrackingState(store=store, experiment=experiment)
        if self._state.store != store:
            # Another store: its runs are found again by tag, or made anew from the whole journal.
            self._state = blank
        self._is_synced = False
        if not self._state.study_id:
            return
        before = replace(self._state, lacking=dict(self._state.lacking))
        self._state.experiment = experiment
        restored = self._sync(self._state)
        if self._state.parent_run_id is None:
            self._begin_again("the store does not know this study any more", blank)
            return
        self._give_up_claims(self._state, self.notes)
        tags = self._client.get_run(self._state.parent_run_id).data.tags
        if restored:  # they lack what came while they were deleted, a downgrade among it
            runs = ", ".join(name_of(trial) for trial in restored)
            self._begin_again(f"runs that were deleted in MLflow are there again ({runs})", blank)
        elif SEQ in tags and seq_of(tags) < self._state.seq:
            self._begin_again("the store is an older copy of itself", blank)
        elif self._state != before:
            self._state.save(self._path)  # others read it

    def _begin_again(self, why: str, blank: TrackingState) -> None:
        self._note(why)
        self._state, self._is_synced = replace(blank, lacking=self._state.lacking), False

    def _note(self, what: str) -> None:
        self.notes.append(f"{what}; all events of the journal are delivered again, none twice")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of an error of the store whether its file is damaged, or it refuses who asks."""
        try:
            yield
        except Exception as error:  # whatever MLflow and SQLAlchemy raise
            if refused := refusal(str(error)):
                problem = f"the tracking store at {masked(self._uri)} {refused}"
                raise StoreRefusedError(problem, fix=CREDENTIALS) from error
            if "disk is full" in str(error) or "No space left" in str(error):
                problem = f"the tracking store at {masked(self._uri)} has no room: its disk is full"
                raise StoreRefusedError(problem, fix=MAKE_ROOM) from error
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
        if self._deleted is not None:
            self._give_up_models(state, self._deleted)
        is_due = self._writer.is_due(state, reading.updates)
        if state.seq == self._state.seq and not is_due:
            return
        try:
            with self._explained():
                if state.study_id and not self._is_synced:
                    self._sync_for(state)
                for update in reading.updates:
                    self._apply(update, state, refused)
                if not self._is_synced:
                    self._sync_for(state)
                self._give_up_claims(state, refused)
                with self._refused(name_of(None), refused):
                    self._describe(reading.updates, state)
                    self._writer.note_progress(state, self._runs)
                if is_due:
                    self._writer.store_lacking(state, refused)
                if not self._is_synced:
                    self._sync_for(state)
        except BaseException:
            # A request may have succeeded although its answer was lost: look before the next try.
            self._is_synced = False
            raise
        state.save(self._path)
        self._state = state
        if refused:
            raise TrackingRefusedError(refused)

    def _sync(self, state: TrackingState) -> list[int | None]:
        """Take the run ids from the store, which knows best what exists.

        Returns:
            Trials, and None for the study, whose runs were deleted at the last look, and are there
            again.
        """
        last = self._state
        missed: list[int | None] = [*sorted(last.touched() - set(last.run_ids))]
        if last.study_id and last.parent_run_id is None:
            missed.insert(0, None)
        before = {state.parent_run_id or "", *state.run_ids.values()}
        self._runs = runs_of_study(self._client, self._experiment_id, state.study_id, before)
        state.parent_run_id = self._runs.active.get(None)
        state.run_ids = {n: run for n, run in self._runs.active.items() if n is not None}
        self._is_synced = True
        return [trial for trial in missed if trial in self._runs.active]

    def _sync_for(self, state: TrackingState) -> None:
        """Take the run ids for a batch; a run that missed earlier ones waits for a launch."""
        for trial in self._sync(state):
            self._runs.hold(trial, self._runs.active[trial])
            if trial is None:
                state.parent_run_id = None
            else:
                del state.run_ids[trial]

    def _give_up_claims(self, state: TrackingState, refused: list[str]) -> None:
        """Take a claim that is lost off second runs, which were restored, too."""
        while state.downgraded and self._runs.claiming:
            run_id, trial = self._runs.claiming.popitem()
            with self._refused(name_of(trial), refused):
                self._writer.give_up_claim(run_id, trial, state, refused)

    def _give_up_models(self, state: TrackingState, deleted: ExperimentDeletedError) -> None:
        """Raise, as runs of a deleted experiment take nothing; models lose a claim that is lost."""
        problems: list[str] = []
        if state.downgraded:
            with self._explained():
                self._sync(state)
                every = {*self._runs.others, *state.run_ids}
                for trial in (each for each in every if each is not None):
                    for run_id in self._runs_of(trial, state):
                        problems += self._models.give_up_claim(run_id, state.downgraded)
            problems = problems or ["its models, registered ones too, have lost the study's claim"]
        raise ExperimentDeletedError("; ".join([deleted.message, *problems]), fix=deleted.fix)

    def _runs_of(self, trial: int, state: TrackingState) -> list[str]:
        """Return all runs of a trial, deleted ones too: whoever labels its models needs them."""
        run_id = state.run_ids.get(trial)
        return [*self._runs.others.get(trial, ()), *([] if run_id is None else [run_id])]

    def _apply(self, update: RunUpdate, state: TrackingState, refused: list[str]) -> None:
        of = name_of(update.trial)
        run_id = state.parent_run_id if update.trial is None else state.run_ids.get(update.trial)
        if run_id is None and (not update.opens or update.trial in self._runs.barred):
            refused.append(
                f"{of}: its run was deleted in MLflow; later values are not logged; fix: restore "
                "the run in MLflow and run the study's command again, which delivers them"
            )
        elif run_id is None and update.trial is not None and state.parent_run_id is None:
            refused.append(
                f"{of}: it gets no run, as that of its study was deleted in MLflow; fix: restore "
                "the study's and run the study's command again, which delivers what is missing"
            )
        else:
            with self._refused(of, refused):
                is_new = run_id is None
                if run_id is None:
                    run_id = self._create(update, state)
                elif update.opens:
                    self._client.update_run(run_id, status="RUNNING")
                self._writer.write(run_id, of, update, state, refused, is_new=is_new)
                if update.status is not None:
                    self._client.set_terminated(run_id, update.status, update.end_ms)
        if "dp.downgraded" in update.tags and update.trial is not None:
            # Of a deleted run, too, which takes no tags: its models may be registered.
            for each in self._runs_of(update.trial, state):
                with self._refused(of, refused):
                    refused += self._models.give_up_claim(each, update.tags["dp.downgraded"])

    @contextmanager
    def _refused(self, of: str, refused: list[str]) -> Iterator[None]:
        """Note what MLflow refuses for good; whatever else it raises is tried again."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            if error.error_code not in _PERMANENT:
                raise
            refused.append(f"{of}: refused by MLflow: {error.message}")
            self._is_synced = False  # the run may have been deleted meanwhile

    def _describe(self, updates: Sequence[RunUpdate], state: TrackingState) -> None:
        """Give the study's run its card with links to what is best, and the study its view."""
        parent = next((update for update in updates if update.trial is None), None)
        if parent is None or state.parent_run_id is None:
            return
        if parent.opens:
            key, view = f"{VIEW_TAG}{view_key(state)}", saved_view(state)
            self._client.set_experiment_tag(self._experiment_id, key, view)
        if "privacy_card.md" in parent.texts:
            text = fitting_text(with_links(parent.texts["privacy_card.md"], state))
            self._client.set_tag(state.parent_run_id, DESCRIPTION, text)

    def _create(self, update: RunUpdate, state: TrackingState) -> str:
        parent = state.parent_run_id
        run_id = self._writer.create(self._experiment_id, update, state.study, parent)
        if update.trial is None:
            state.parent_run_id = run_id
        else:
            state.run_ids[update.trial] = run_id
        return run_id

    def log_model(self, trial: int, model: Any, input_example: Any, label: ModelLabel) -> str:
        """Store a trial's model once, as a ``torch.export`` graph; return its URI.

        The format holds a graph and tensors, no pickled code, so
        ``mlflow.pytorch.load_model(uri)`` needs neither this package nor trust in the file. The
        first dimension of the input is the batch and stays free.

        Args:
            trial: A trial that has a run.
            model: A ``ModelGraph``, or the ``torch.nn.Module`` to make one of.
            input_example: Of a module, as ``Tracker.log_model`` takes it.
            label: What the model carries.
        Raises:
            BadInputError: The trial has no run.
        """
        run_id = self._state.run_ids.get(trial)
        if run_id is None:
            raise BadInputError(
                f"trial {trial} has no tracking run, so its model is not logged; a run that was "
                "deleted can be restored in MLflow"
            )
        name = logged_name(self._state.study, trial)
        constants = self._state.constants  # its run has what was searched

        def write(path: Path, identity: Mapping[str, Any]) -> None:
            is_traced = isinstance(model, ModelGraph)
            graph = model if is_traced else ModelGraph.of(model, input_example)
            write_model(path, identity, graph=graph, label=label)

        model_id = self._models.store(name, run_id, write, constants)
        parent = self._state.parent_run_id
        self._models.link(model_id, run_id, parent)
        self._state.model_uris[trial] = f"{_MODELS}{model_id}"
        note = self._client.get_run(parent).data.tags.get(DESCRIPTION) if parent else None
        if note and trial == self._state.best_trial:
            self._client.set_tag(parent, DESCRIPTION, with_links(note, self._state))
        self._state.save(self._path)
        self.label_model(trial, label)
        return self._state.model_uris[trial]

    def has_model(self, trial: int) -> bool:
        """Say whether a trial's model is in the store."""
        run_id = self._state.run_ids.get(trial)
        return run_id is not None and self._models.is_stored(run_id)

    def label_model(self, trial: int, label: ModelLabel) -> None:
        """Give a trial's logged model the label that holds now, in the store and in its files."""
        problems = []
        for run_id in self._runs_of(trial, self._state):
            problems += self._models.label(run_id, label)
        if problems:
            raise TrackingRefusedError(problems)

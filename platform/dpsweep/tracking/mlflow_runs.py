"""Runs of an MLflow store: those of a study are looked for; one is written, with its files."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.logs import as_file
from dpsweep.foundation.servers import cause_of
from dpsweep.foundation.version import __version__
from dpsweep.tracking.base import UnreadArtifactError
from dpsweep.tracking.drafts import RunUpdate
from dpsweep.tracking.labels import downgraded_card, downgraded_tags
from dpsweep.tracking.mlflow_models import DESCRIPTION, fitting, fitting_text
from dpsweep.tracking.state import (
    PRETRAIN_ROLE,
    PRETRAINING,
    SEQ,
    TrackingState,
    name_of,
    number_of,
    seq_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Param, Run

# Limits of one log_batch request (1,000 values in all) and of single ones, from MLflow's REST API.
_METRICS_PER_BATCH = 800
_PAIRS_PER_BATCH = 100
_MAX_PARAM = 6000
_PARENT = "mlflow.parentRunId"
_TRIAL = "dpsweep.trial"
_ACTIVE, _ALL = "active", 3  # LifecycleStage.ACTIVE and ViewType.ALL of MLflow
# Of files that are tried again: so long may be spent on those that fail.
_FAILING_S = 20.0
_AGAIN = "run the study's command again, which stores them"
# A server that is busy, or in trouble, and may not be later.
_PASSING = re.compile(
    r"\b5\d\d (Server Error|error responses)|\b(error code|status) 5\d\d\b|timed out|[Cc]onnection"
)


@dataclass(frozen=True)
class StudyRuns:
    """Runs of a study in an experiment, by trial; the study's own is that of None.

    Attributes:
        active: The run of each, which takes what is new.
        others: Runs that take nothing more: those that were deleted in MLflow, and second ones.
            Their models may be registered, and are labelled as those of the others.
        barred: Trials that get no run: one under the study's run was deleted, and may be restored.
            Whoever waits for the next launch to be delivered what it missed is among them.
        claiming: Runs among ``others`` that are not deleted and have no tag of a downgrade, with
            their trials.
        parents: The run that each active run of a trial is shown under.
    """

    active: Mapping[int | None, str] = field(default_factory=dict)
    others: dict[int | None, list[str]] = field(default_factory=dict)
    barred: set[int | None] = field(default_factory=set)
    claiming: dict[str, int | None] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)

    def hold(self, trial: int | None, run_id: str) -> None:
        """Have a run take nothing more until the next launch."""
        self.others.setdefault(trial, []).append(run_id)
        self.barred.add(trial)


def runs_of_study(
    client: MlflowClient, experiment_id: str, study_id: str, before: Collection[str]
) -> StudyRuns:
    """Return the runs that carry a study's id, deleted ones too.

    Args:
        client: Of the store.
        experiment_id: Where they are.
        study_id: Their tag.
        before: Runs that were written to until now; one of them stays before a second one.
    """
    by_trial: dict[int | None, list[Run]] = {}
    for run in _carrying(client, experiment_id, study_id):
        if number_of(run.data.tags.get(_TRIAL, "0")) is None:  # edited by hand: of which, then?
            continue
        by_trial.setdefault(_trial_of(run), []).append(run)
    active: dict[int | None, str] = {}

    def rank(run: Run) -> tuple[bool, bool, int]:
        tags = run.data.tags
        is_under = active.get(None) is not None and tags.get(_PARENT) == active.get(None)
        return str(run.info.run_id) in before, is_under, seq_of(tags)

    for trial in sorted(by_trial, key=lambda trial: trial is not None):  # the study's own first
        there = [run for run in by_trial[trial] if run.info.lifecycle_stage == _ACTIVE]
        if there:
            active[trial] = str(max(reversed(there), key=rank).info.run_id)
    all_runs, parent = StudyRuns(active), active.get(None)
    for trial, runs in by_trial.items():
        for run in runs:
            run_id, tags = str(run.info.run_id), run.data.tags
            if run_id == active.get(trial):
                if trial is not None:
                    all_runs.parents[run_id] = tags.get(_PARENT, "")
                continue
            all_runs.others.setdefault(trial, []).append(run_id)
            if run.info.lifecycle_stage == _ACTIVE:
                if "dp.downgraded" not in tags:
                    all_runs.claiming[run_id] = trial
            elif trial is not None and parent and tags.get(_PARENT, parent) == parent:
                all_runs.barred.add(trial)
    return all_runs


def _carrying(client: MlflowClient, experiment_id: str, study_id: str) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs(
            [experiment_id],
            filter_string=f"tags.`dpsweep.study_id` = '{study_id}'",
            run_view_type=_ALL,
            max_results=1000,
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def _trial_of(run: Run) -> int | None:
    if run.data.tags.get("dpsweep.role") == PRETRAIN_ROLE:
        return PRETRAINING
    return number_of(run.data.tags.get(_TRIAL, ""))


class RunWriter:
    """Makes runs, and writes updates to those that exist.

    Args:
        client: Of the store.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._has_told_of_files = False
        self._has_tried = False

    def is_due(self, state: TrackingState, updates: Sequence[RunUpdate]) -> bool:
        """Say whether files that a store lacks are to be tried again: at a launch, and at the end
        of the study.
        """
        is_end = any(update.trial is None and update.status for update in updates)
        return bool(state.lacking) and (is_end or not self._has_tried)

    def note_progress(self, state: TrackingState, runs: StudyRuns) -> None:
        """Note on the study's run how far it is, and show the runs of its trials under it.

        The run that they were made under may have been deleted alone.
        """
        parent = state.parent_run_id
        if parent is None:
            return
        self._client.set_tag(parent, SEQ, state.seq)
        for run_id in runs.parents.keys() & state.run_ids.values():
            if runs.parents[run_id] != parent:
                self._client.set_tag(run_id, _PARENT, parent)
                runs.parents[run_id] = parent

    def create(self, experiment_id: str, update: RunUpdate, study: str, parent: str | None) -> str:
        """Make a run of an update that opens one, and return its id.

        Args:
            experiment_id: Where.
            update: Its tags say by what the run is found again.
            study: Name of the study.
            parent: The study's run, if it is of a trial.
        """
        tags = {
            "mlflow.user": _user(),
            "mlflow.source.name": f"dpsweep {__version__}",
            "mlflow.source.type": "LOCAL",
            # Among them the study's id and the trial, by which a lost run is found again.
            **_tags(update),
        }
        name = study
        if update.trial is not None:
            is_trial = update.trial != PRETRAINING
            name = f"trial-{update.trial:04d}" if is_trial else PRETRAIN_ROLE
            assert parent is not None
            tags[_PARENT] = parent
        run = self._client.create_run(
            experiment_id, start_time=update.start_ms, tags=tags, run_name=name
        )
        return str(run.info.run_id)

    def write(
        self,
        run_id: str,
        of: str,
        update: RunUpdate,
        state: TrackingState,
        refused: list[str],
        *,
        is_new: bool = False,
    ) -> None:
        """Write all of an update but its status.

        Args:
            run_id: The run.
            of: What the run is of, as messages say it.
            update: What is new.
            state: Gets the files that the store does not take.
            refused: Gets a line for each value that the store does not take.
            is_new: Whether the run was made of this update, with its tags.
        """
        self._log(run_id, of, update, refused, has_tags=is_new)
        if update.datasets:
            self._client.log_inputs(run_id, [_input(dataset) for dataset in update.datasets])
        files: dict[str, str | None] = {**update.texts}
        files |= {name: None for name in update.artifacts if name not in files}
        older = state.lacking.pop(run_id, {})
        lacking = {name: text for name, text in older.items() if name not in files}
        try:
            while files:
                name = next(iter(files))
                self._store(run_id, of, name, files[name], refused)
                del files[name]
        except Exception as error:  # whatever an artifact store raises
            self._client.get_run(run_id)  # raises where the server is away: all is tried again
            self._tell_of_files(error, refused)
        if lacking := {**lacking, **files}:
            state.lacking[run_id] = lacking

    def store_lacking(self, state: TrackingState, refused: list[str]) -> None:
        """Try to store the files that the store did not take when they were new.

        Args:
            state: Loses those that are stored.
            refused: Gets a line if there are some that are not.
        """
        failing_s, trials = 0.0, {run_id: trial for trial, run_id in state.run_ids.items()}
        for run_id, name in [(run, name) for run in state.lacking for name in state.lacking[run]]:
            if run_id not in state.lacking or failing_s > _FAILING_S:
                continue
            of, begun = name_of(trials.get(run_id)), time.monotonic()
            try:
                self._store(run_id, of, name, state.lacking[run_id][name], refused)
            except Exception as error:  # whatever an artifact store raises
                failing_s += time.monotonic() - begun
                if self._is_there(run_id):
                    self._tell_of_files(error, refused)
                else:
                    del state.lacking[run_id]
            else:
                del state.lacking[run_id][name]
                if not state.lacking[run_id]:
                    del state.lacking[run_id]
        self._has_tried = True

    def _is_there(self, run_id: str) -> bool:
        """Say whether the store has a run; raises where it is away."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True

    def _tell_of_files(self, error: Exception, refused: list[str]) -> None:
        if isinstance(error, UnreadArtifactError):  # nothing is wrong with the store
            refused.append(str(error))
            return
        if self._has_told_of_files:
            return
        self._has_told_of_files = True
        fix = _AGAIN
        if not _PASSING.search(str(error)):
            fix = f"let the server keep artifacts (--serve-artifacts) where it may write, and {fix}"
        refused.append(
            f"the artifact store cannot be written ({cause_of(error)}): files and models stay in "
            f"the study's folder, all else is logged; fix: {fix}"
        )

    def give_up_claim(
        self, run_id: str, trial: int | None, state: TrackingState, refused: list[str]
    ) -> None:
        """Give a run that takes nothing more the label of a downgraded study.

        Args:
            run_id: The run.
            trial: That it is of, None for the study.
            state: Of the study; says why the claim is lost.
            refused: Gets a line for each value that the store does not take.
        """
        update, reason = RunUpdate(trial, tags=downgraded_tags(state.downgraded)), state.downgraded
        if trial is None:
            update.note = update.texts["privacy_card.md"] = downgraded_card(None, reason)
        self.write(run_id, name_of(trial), update, state, refused)

    def _log(
        self, run_id: str, of: str, update: RunUpdate, refused: list[str], *, has_tags: bool
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        tags = [] if has_tags else [RunTag(*pair) for pair in _tags(update).items()]
        points = [Metric(p.name, p.value, p.time_ms, p.step) for p in update.metrics]
        params = []
        for name, text in update.params.items():
            if len(text) > _MAX_PARAM:
                refused.append(f"{of}: param {name!r} is longer than {_MAX_PARAM} characters")
            else:
                params.append(Param(name, text))
        while points or tags or params:
            others = {"metrics": points[:_METRICS_PER_BATCH], "tags": tags[:_PAIRS_PER_BATCH]}
            self._log_batch(run_id, of, params[:_PAIRS_PER_BATCH], others, refused)
            points, tags = points[_METRICS_PER_BATCH:], tags[_PAIRS_PER_BATCH:]
            params = params[_PAIRS_PER_BATCH:]

    def _log_batch(
        self, run_id: str, of: str, params: list[Param], others: Any, refused: list[str]
    ) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(run_id, params=params, **others)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE" or not params:
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
            self._client.log_batch(run_id, params=new, **others)

    def _store(self, run_id: str, of: str, name: str, text: str | None, refused: list[str]) -> None:
        if text is not None:
            self._client.log_text(run_id, text, name)
            return
        with as_file(name) as path:
            try:
                if path.is_dir():
                    self._client.log_artifacts(run_id, str(path), path.name)
                elif path.exists():
                    self._client.log_artifact(run_id, str(path))
                else:
                    refused.append(f"{of}: artifact {name} does not exist")
            except OSError as error:
                if not Path(error.filename or "").is_relative_to(path):
                    raise  # the store's
                problem = f"{of}: artifact {error.filename} cannot be read ({error.strerror})"
                problem += f"; fix: let this user read it, and {_AGAIN}"
                raise UnreadArtifactError(problem) from error


def _tags(update: RunUpdate) -> dict[str, str]:
    tags = fitting(update.tags)
    if update.note:
        tags[DESCRIPTION] = fitting_text(update.note)
    return tags


def _input(dataset: Mapping[str, Any]) -> Any:
    """Return declared records as an input of a run; its digest is that of the declaration."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    declared = json.dumps(dict(dataset), sort_keys=True)
    digest = hashlib.sha256(declared.encode()).hexdigest()[:8]
    profile = json.dumps({"declared_records": dataset.get("records", "not told")})
    source = json.dumps({"declared": "the data section of sweep.yaml"})
    entry = Dataset(dataset["name"], digest, "spec", source, profile=profile)
    return DatasetInput(entry, [InputTag("mlflow.data.context", dataset["context"])])


def _user() -> str:
    """Return who runs this; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid-{os.getuid()}"

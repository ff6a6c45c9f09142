"""Runs of an MLflow store: those of a study are looked for, with where they are; one is written."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.logs import as_file
from dpsweep.foundation.version import __version__
from dpsweep.tracking.drafts import MetricPoint, RunUpdate
from dpsweep.tracking.labels import downgraded_card, downgraded_tags
from dpsweep.tracking.mlflow_models import DESCRIPTION, fitting, fitting_text
from dpsweep.tracking.state import PRETRAIN_ROLE, PRETRAINING, TrackingState, name_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

# Limits of one log_batch request and of single values, from MLflow's REST API.
_METRICS_PER_BATCH = 900
_PAIRS_PER_BATCH = 100
_MAX_PARAM = 6000
_PARENT = "mlflow.parentRunId"
_ACTIVE, _ALL = "active", 3  # LifecycleStage.ACTIVE and ViewType.ALL of MLflow


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
    """

    active: Mapping[int | None, str] = field(default_factory=dict)
    others: dict[int | None, list[str]] = field(default_factory=dict)
    barred: set[int | None] = field(default_factory=set)
    claiming: dict[str, int | None] = field(default_factory=dict)

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
        by_trial.setdefault(_trial_of(run), []).append(run)
    active: dict[int | None, str] = {}
    for trial, runs in by_trial.items():
        ids = [str(run.info.run_id) for run in runs if run.info.lifecycle_stage == _ACTIVE]
        if ids:
            active[trial] = next((run_id for run_id in ids if run_id in before), ids[-1])
    all_runs, parent = StudyRuns(active), active.get(None)
    for trial, runs in by_trial.items():
        for run in runs:
            run_id, tags = str(run.info.run_id), run.data.tags
            if run_id == active.get(trial):
                continue
            all_runs.others.setdefault(trial, []).append(run_id)
            if run.info.lifecycle_stage == _ACTIVE:
                if "dp.downgraded" not in tags:
                    all_runs.claiming[run_id] = trial
            elif trial is not None and parent and tags.get(_PARENT, parent) == parent:
                all_runs.barred.add(trial)
    return all_runs


def renamed_experiment(
    client: MlflowClient, state: TrackingState, name: str, *, is_there: bool
) -> Experiment | None:
    """Return the experiment that has a study's runs under another name than asked, if any.

    None as well if it is deleted, or the study has asked for another one before.

    Args:
        client: Of the store.
        state: Of the study's last launch.
        name: That the study asks for.
        is_there: Whether another experiment has that name.
    """
    from mlflow.exceptions import MlflowException

    # Files of earlier versions do not say which name was asked for: one that is there is meant,
    # and so is one that somebody has chosen.
    is_chosen = is_there or name != state.study
    is_other = state.experiment != name if state.experiment else is_chosen
    if state.parent_run_id is None or is_other:
        return None
    try:
        experiment_id = client.get_run(state.parent_run_id).info.experiment_id
        experiment: Experiment = client.get_experiment(experiment_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None  # another store, or it was removed for good
    is_kept = experiment.lifecycle_stage == _ACTIVE and experiment.name != name
    return experiment if is_kept else None


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
    trial = run.data.tags.get("dpsweep.trial")
    return None if trial is None else int(trial)


class RunWriter:
    """Makes runs, and writes updates to those that exist.

    Args:
        client: Of the store.
    """

    def __init__(self, client: MlflowClient) -> None:
        self._client = client
        self._has_told_of_files = False

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
            **fitting(update.tags),
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

    def write(self, run_id: str, of: str, update: RunUpdate, refused: list[str]) -> None:
        """Write all of an update but its status.

        Args:
            run_id: The run.
            of: What the run is of, as messages say it.
            update: What is new.
            refused: Gets a line for each value that the store does not take.
        """
        self._log(run_id, of, update, refused)
        if update.datasets:
            self._client.log_inputs(run_id, [_input(dataset) for dataset in update.datasets])
        try:
            self._store_files(run_id, of, update, refused)
        except Exception as error:  # whatever an artifact store raises
            self._client.get_run(run_id)  # raises where the server is away: all is tried again
            if not self._has_told_of_files:
                self._has_told_of_files = True
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                refused.append(
                    f"the artifact store cannot be written ({reason}): files and models stay in "
                    "the study's folder, all else is logged; fix: let the server keep artifacts "
                    "(--serve-artifacts) where it may write"
                )

    def give_up_claim(
        self, run_id: str, trial: int | None, reason: str, refused: list[str]
    ) -> None:
        """Give a run that takes nothing more the label of a downgraded study.

        Args:
            run_id: The run.
            trial: That it is of, None for the study.
            reason: Why the claim is lost.
            refused: Gets a line for each value that the store does not take.
        """
        update = RunUpdate(trial, tags=downgraded_tags(reason))
        if trial is None:
            update.note = update.texts["privacy_card.md"] = downgraded_card(None, reason)
        self.write(run_id, name_of(trial), update, refused)

    def _log(self, run_id: str, of: str, update: RunUpdate, refused: list[str]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        def metric(point: MetricPoint) -> Metric:
            return Metric(point.name, point.value, point.time_ms, point.step)

        tags = fitting(update.tags)
        if update.note:
            tags[DESCRIPTION] = fitting_text(update.note)
        params = {}
        for name, text in update.params.items():
            if len(text) > _MAX_PARAM:
                refused.append(f"{of}: param {name!r} is longer than {_MAX_PARAM} characters")
            else:
                params[name] = text
        pairs_of_params = [Param(name, text) for name, text in params.items()]
        pairs_of_tags = [RunTag(name, text) for name, text in tags.items()]
        points = [metric(point) for point in update.metrics]
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
        for name in update.artifacts:
            with as_file(name) as path:
                if path.is_dir():
                    self._client.log_artifacts(run_id, str(path), path.name)
                elif path.exists():
                    self._client.log_artifact(run_id, str(path))
                else:
                    refused.append(f"{of}: artifact {name} does not exist")


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

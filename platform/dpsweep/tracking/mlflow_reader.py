"""MLflowReader: the runs of studies in an MLflow store, for whoever has nothing else of them.

It reads and never writes: no store, no experiment and no run comes to be by looking for one.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.errors import BadInputError, StudyError
from dpsweep.foundation.servers import cause_of
from dpsweep.spec.tracking import TrackingSpec, database_of, masked
from dpsweep.tracking.labels import downgraded_tags
from dpsweep.tracking.mlflow_models import REGISTERED
from dpsweep.tracking.mlflow_reach import quiet, refuse_credentials
from dpsweep.tracking.schema import EPSILON
from dpsweep.tracking.state import PRETRAIN_ROLE, number_of, seq_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PAGE = 1000
_HEADINGS = ("The following failures occurred", "##### File")
_UP = "see that its server is up and lets you in, or that its file is whole"
_SERVES = "ask again if its server was busy; see that it serves artifacts and lets you in"


@dataclass(frozen=True)
class StoredRun:
    """One run, as the store has it.

    Attributes:
        run_id: Of the run.
        experiment: Name of its experiment.
        start_ms: When it began, in milliseconds since 1970.
        tags: Name to text.
        params: Name to text.
        metrics: Name to last value.
        artifact_uri: Where its files are.
        last: Metric to the step and the value of its last point; empty where the store has others.
    """

    run_id: str
    experiment: str
    start_ms: int
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    artifact_uri: str = ""
    last: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def plan(self) -> dict[str, str]:
        """Facts of a trial's plan: tags, and params of earlier versions."""
        facts = {**self.params, **self.tags}
        return {name: text for name, text in facts.items() if name.startswith("plan.")}

    @property
    def study(self) -> str:
        """Name of its study."""
        return self.tags.get("dpsweep.study", "")

    @property
    def study_id(self) -> str:
        """Identifier of its study; names may repeat, this does not."""
        return self.tags.get("dpsweep.study_id", "")


def default_uri() -> str:
    """Return the tracking store that is meant where none is named."""
    return os.environ.get("MLFLOW_TRACKING_URI") or str(TrackingSpec().uri)


def open_client(uri: str) -> MlflowClient:
    """Return a client of a store that is there.

    Raises:
        BadInputError: It is a directory, or a database that is missing, or the credentials for it
            cannot be sent.
    """
    shown = masked(uri)
    if ":/" not in uri or uri.startswith("file:"):
        raise BadInputError(
            f"tracking store {shown!r} is a directory, and no database or server",
            fix='use "sqlite:///mlflow.db" or the address of a tracking server',
        )
    database = database_of(uri)
    if database is not None and not database.is_file():
        raise BadInputError(
            f"there is no tracking store at {shown}",
            fix="give tracking_uri (`--tracking-uri`), or set MLFLOW_TRACKING_URI",
        )
    refuse_credentials(uri)
    quiet()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


class MLflowReader:
    """Studies of one MLflow store.

    Pickled it is its address without a password or token: where it is read again, it opens the
    store by what the environment there lets in.

    Args:
        uri: ``sqlite:///file`` or a server's address; None: ``default_uri``.
    Raises:
        BadInputError: There is no such store, or it cannot be read.
    """

    def __init__(self, uri: str | None = None) -> None:
        uri = uri or default_uri()
        self._uri, self.shown_uri = uri, masked(uri)
        with self._explained():
            self._client = open_client(uri)

    def __reduce__(self) -> tuple[object, ...]:
        return MLflowReader, (_bare(self._uri),)

    def __deepcopy__(self, _: Any) -> MLflowReader:
        return self  # it holds nothing that changes

    @contextmanager
    def _explained(self, of: str = "", fix: str = _UP) -> Iterator[None]:
        """Say which store could not be read, whatever MLflow, SQLAlchemy or requests raise."""
        try:
            yield
        except (BadInputError, MemoryError):
            raise
        except Exception as error:
            raise BadInputError(
                f"{of}tracking store {self.shown_uri} cannot be read",
                because=_first_line(error) or type(error).__name__,
                fix=fix,
            ) from error

    def studies(self, experiment: str | None = None, name: str | None = None) -> list[StoredRun]:
        """Return the runs of studies, newest first; one for each study.

        Of a study with several, as one was deleted and is restored, it is that which has most of
        its journal; a claim that another one has lost is lost.

        Args:
            experiment: Only those of this experiment.
            name: Only those of this name.
        Raises:
            StudyError: There is no such experiment.
        """
        with self._explained():
            if experiment is None:
                experiments = list(_pages(self._client.search_experiments))
            else:
                only = self._client.get_experiment_by_name(experiment)
                experiments = [] if only is None or only.lifecycle_stage == "deleted" else [only]
            if experiment is not None and not experiments:
                raise StudyError(
                    f"there is no experiment {experiment!r} in {self.shown_uri}",
                    fix=f"`dpsweep list mlflow:{self.shown_uri}` shows what there is",
                )
            query = "attributes.status != 'UNKNOWN'" if name is None else _equals("study", name)
            runs = [
                run
                for each in experiments
                for run in self._search(each.experiment_id, each.name, query)
            ]
        parents: dict[tuple[str, str], list[StoredRun]] = {}
        for run in runs:
            if run.study_id and _is_of_study(run):
                parents.setdefault((run.experiment, run.study_id), []).append(run)
        return sorted(map(_joined, parents.values()), key=lambda run: -run.start_ms)

    def trials(self, study: StoredRun) -> dict[int, StoredRun]:
        """Return the runs of a study's trials by number.

        A trial has several where some were deleted, made anew and restored: those under the study's
        own run come first, and of these the one that says the largest epsilon.
        """
        with self._explained():
            only = self._client.get_experiment_by_name(study.experiment)
            query = _equals("study_id", study.study_id)
            runs = list(self._search(only.experiment_id, study.experiment, query))

        def rank(run: StoredRun) -> tuple[bool, float]:
            epsilon = run.metrics.get(EPSILON, -math.inf)
            is_without = run.tags.get("dp.epsilon") == "inf" or math.isnan(epsilon)
            is_under = run.tags.get("mlflow.parentRunId") == study.run_id
            return is_under, math.inf if is_without else epsilon

        numbered = [(number_of(run.tags.get("dpsweep.trial", "")), run) for run in runs]
        of_trials = [(number, run) for number, run in numbered if number is not None]
        return dict(sorted(of_trials, key=lambda each: rank(each[1])))

    def _search(self, experiment_id: str, name: str, query: str) -> Iterator[StoredRun]:
        def page(**keys: Any) -> Any:
            return self._client.search_runs([experiment_id], filter_string=query, **keys)

        # Databricks means the last by time; stores of MLflow the last by step, as `history`.
        is_by_step = not self._uri.startswith("databricks")
        for run in _pages(page):
            data = run.data
            points = data.to_proto().metrics if is_by_step else ()
            yield StoredRun(
                run.info.run_id,
                name,
                run.info.start_time or 0,
                dict(data.tags),
                dict(data.params),
                dict(data.metrics),
                run.info.artifact_uri or "",
                {point.key: (point.step, point.value) for point in points},
            )

    def history(self, run: StoredRun, metric: str) -> list[tuple[int, float]]:
        """Return the points of a metric, (step, value), by step; none if it was not logged."""
        if metric not in run.metrics:
            return []
        with self._explained():
            points = self._client.get_metric_history(run.run_id, metric)
        points = sorted(points, key=lambda point: (point.step, point.timestamp))
        return [(point.step, point.value) for point in points]

    def last(self, run: StoredRun, metric: str) -> tuple[int, float] | None:
        """Return the last point of a metric, (step, value), by step; None without one."""
        if metric in run.last:
            return run.last[metric]
        points = self.history(run, metric)
        return points[-1] if points else None

    def models(self, study: StoredRun) -> dict[str, str]:
        """Return where the whole models of a study's experiment are, by the run they are from."""
        with self._explained():
            only = self._client.get_experiment_by_name(study.experiment)

            def page(**keys: Any) -> Any:
                return self._client.search_logged_models([only.experiment_id], **keys)

            return {
                model.source_run_id: f"models:/{model.model_id}"
                for model in reversed(list(_pages(page)))  # the newest: files of others were lost
                if model.status == "READY" and model.model_type != REGISTERED
            }

    def text(self, run: StoredRun, name: str) -> str | None:
        """Return a file of a run as text; None if the run has no such file.

        Raises:
            BadInputError: Whether it has one cannot be said now, or the store keeps it from us.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
        from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri

        # By its address: by the run's id MLflow says of each error that there is no such file.
        with (
            self._explained(f"{name} of run {run.run_id} in ", _SERVES),
            tempfile.TemporaryDirectory() as folder,
        ):
            uri = add_databricks_profile_info_to_artifact_uri(run.artifact_uri, self._uri)
            files = get_artifact_repository(uri, tracking_uri=self._uri)
            try:
                return Path(files.download_artifacts(name, folder)).read_text()
            except Exception as error:  # whatever the store of artifacts raises
                if _is_missing(error) or not _lists(files, name):
                    return None
                raise


def _bare(uri: str) -> str:
    """Return the address of a store without what lets in; the user of a database stays.

    >>> _bare("http://me:a@b@host:5000"), _bare("https://token@host")
    ('http://host:5000', 'https://host')
    >>> _bare("postgresql+psycopg://me:secret@db/studies"), _bare("sqlite:///mlflow.db")
    ('postgresql+psycopg://me@db/studies', 'sqlite:///mlflow.db')
    """
    shown = masked(uri)
    if shown == uri:
        return uri
    if uri.startswith(("http://", "https://")):
        return re.sub(r"://[^/]*\*\*\*@", "://", shown)
    return shown.replace(":***@", "@")


def _is_missing(error: Exception) -> bool:
    code = getattr(error, "error_code", "")
    return code == "RESOURCE_DOES_NOT_EXIST" or "404 Client Error" in str(error)


def _lists(files: Any, name: str) -> bool:
    """Say whether a store of artifacts has a file, which one that failed to hand it out may not.

    A server that keeps files in a bucket answers 500 for one that is missing.
    """
    try:
        return any(each.path == name for each in files.list_artifacts())
    except Exception as error:
        if _is_missing(error):
            return False
        raise


def _first_line(error: Exception) -> str:
    """Return what an error says, in a line without secrets."""
    text = str(error)
    if "Caused by" in text:  # of urllib3, behind the whole address
        text = cause_of(error)
    lines = masked(blotted(text)).strip().split("\n")
    # Of a file MLflow says first that it failed, and which, and then why.
    return next((line for line in lines if not line.startswith(_HEADINGS)), lines[0])[:300]


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    token = None
    while True:
        page = search(max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _equals(tag: str, text: str) -> str:
    quoted = text.replace("'", "")  # neither names nor ids of studies have one
    return f"tags.`dpsweep.{tag}` = '{quoted}'"


def _is_of_study(run: StoredRun) -> bool:
    return "dpsweep.trial" not in run.tags and run.tags.get("dpsweep.role") != PRETRAIN_ROLE


def _joined(runs: Sequence[StoredRun]) -> StoredRun:
    """Return the run of a study that has most of its journal, without a claim that any has lost."""
    run = max(runs, key=lambda run: (seq_of(run.tags), run.start_ms))
    lost = [each.tags["dp.downgraded"] for each in runs if each.tags.get("dp.downgraded")]
    if not lost or run.tags.get("dp.downgraded"):
        return run
    return replace(run, tags={**run.tags, **downgraded_tags(lost[0])})


def names_of(runs: Sequence[StoredRun]) -> list[str]:
    """Return the names that studies are opened by: ``mlflow:EXPERIMENT/NAME``, with the id if the
    name repeats.
    """
    plain = [f"mlflow:{run.experiment}/{run.study}" for run in runs]
    return [
        f"{name}@{run.study_id}" if plain.count(name) > 1 else name
        for name, run in zip(plain, runs)
    ]

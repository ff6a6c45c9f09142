"""Reach of an MLflow store: a server answers, lets us in and keeps files, before a study starts;
and the study's experiment is there. Of a SQL server the connection alone is tried.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import is_writable
from dpsweep.foundation.servers import cause_of, why_silent
from dpsweep.spec.tracking import database_of, masked
from dpsweep.tracking.base import ExperimentDeletedError
from dpsweep.tracking.mlflow_database import experiments_in, files_beside, why_closed
from dpsweep.tracking.state import TrackingState

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

#: A server that has not answered by then is away; all questions together take no longer.
PATIENCE_S = 12.0
_REQUEST_S = 5
CREDENTIALS = (
    "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, to those "
    "of a user who may write there"
)
_TOKEN = "MLFLOW_TRACKING_TOKEN"
_CREDENTIALS = (_TOKEN, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
# The spool retries with its own backoff, so a request may fail soon; nothing is sent to MLflow's
# makers; nothing is printed over the progress display.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# Opens the views for training runs; without it MLflow may take a sweep for a chat application.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_FORBIDDEN = 403
_REFUSALS = {
    401: "refuses the credentials (401)",
    _FORBIDDEN: "does not let this user in (403)",
}

_FILES = "/api/2.0/mlflow-artifacts/artifacts"
_CHECK = "dpsweep-check.txt"


def quiet() -> None:
    """Configure MLflow by environment before its first import, keeping what the user set."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # It logs the traceback of each error that it raises, which is told in a line.
    logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)
    # SQLAlchemy 2.1 deprecates an option that MLflow still uses; users can do nothing about it.
    warnings.filterwarnings("ignore", message="The ``noload`` loader strategy is deprecated")


def refusal(text: str) -> str:
    """Return the words for an error that says that the server refuses who asks, or nothing.

    >>> refusal("API request to endpoint /x failed with error code 401 != 200.")
    'refuses the credentials (401)'
    """
    code = re.search(r"\b(?:error code|Error:?|status) (401|403)\b|\b(401|403) Client Error", text)
    return _REFUSALS[int(code.group(1) or code.group(2))] if code else ""


def refuse_credentials(uri: str) -> None:
    """Refuse credentials of the environment that no request to a server can carry.

    They come from files that end with a newline. The libraries that send them quote them as they
    fail. A name and a password travel encoded, so that only their control characters are a slip.

    Args:
        uri: Tracking URI; for another than a server's address nothing is looked at.
    Raises:
        BadInputError: One has a control character, or a token has blanks at an end. Its value is
            not in the words.
    """
    if not uri.startswith(("http://", "https://")):
        return
    is_basic = all(os.environ.get(name) for name in _CREDENTIALS[1:])  # MLflow sends no token then
    for name in _CREDENTIALS[is_basic:]:
        if problem := _slip_in(os.environ.get(name, ""), is_token=name == _TOKEN):
            raise BadInputError(
                f"{name} {problem}",
                fix=f'set it to the credential alone: export {name}="$(cat FILE)", which leaves a '
                "last newline out; a Secret is made of a file that `printf %s` wrote",
            )


def _slip_in(value: str, *, is_token: bool) -> str:
    """Say what of a credential no request can carry, without any of it."""
    for is_there, says in (
        (value.endswith(("\n", "\r")), "ends with a newline"),
        (value.startswith(("\n", "\r")), "begins with a newline"),
        ("\n" in value or "\r" in value, "has a newline in it"),
        (is_token and value != value.rstrip(), "ends with a blank"),
        (is_token and value != value.lstrip(), "begins with a blank"),
        (re.search(r"[\x00-\x1f\x7f]", value), "has a control character in it"),
        (is_token and re.search(r"[^\x00-\xff]", value), "has a letter that no request can carry"),
    ):
        if is_there:
            return says
    return ""


def refuse_unreachable(uri: str, experiment: str) -> None:
    """Refuse a store that cannot take a study's runs, as far as can be asked in seconds.

    Of an http address a small file is stored and deleted where the server keeps the files of runs
    itself: below the experiment, whose users may write there. Of a new one it is at the root, and
    a 403 says nothing: servers that know users judge that place by another right. A user who may
    not delete leaves the file, which has one name for all. A SQL server is asked for one
    connection. Of a SQLite file the experiment alone is looked at.

    Raises:
        BadInputError: It does not answer within ``PATIENCE_S``, refuses the credentials, is no
            MLflow server, its files cannot be written, or the experiment is deleted.
    """
    if reason := why_closed(uri):
        raise BadInputError(
            f"the tracking store {masked(uri)} cannot be reached",
            because=reason,
            fix="start its server, correct tracking.uri or what its driver takes the password "
            "from (PGPASSWORD, ~/.pgpass), or set it to null",
        )
    if not uri.startswith(("http://", "https://")):
        for experiment_id, stage in experiments_in(uri, experiment):
            _refuse_deleted(uri, experiment, experiment_id, stage)
        return
    answers: list[BadInputError | None] = []

    def ask() -> None:
        try:
            if silent := why_silent(uri, _REQUEST_S):  # before MLflow is loaded
                raise _away(uri, silent)
            _ask(uri, experiment)
            answers.append(None)
        except BadInputError as error:
            answers.append(error)

    # A name that cannot be resolved may hold a request up for longer than its timeout.
    thread = threading.Thread(target=ask, name="dpsweep-reach", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not answers:
        raise _away(uri, f"no answer within {PATIENCE_S:g} s")
    if answers[0] is not None:
        raise answers[0]


def _away(uri: str, reason: str) -> BadInputError:
    return BadInputError(
        f"no MLflow server answers at {masked(uri)}",
        because=masked(reason),
        fix="start it, correct tracking.uri, or set it to null",
    )


def _ask(uri: str, experiment: str) -> None:
    quiet()
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    def request(
        endpoint: str, method: str = "GET", *, is_403_fine: bool = False, **more: Any
    ) -> Any:
        try:
            answer = http_request(
                get_default_host_creds(uri),
                endpoint,
                method,
                max_retries=0,
                timeout=_REQUEST_S,
                raise_on_status=False,
                **more,
            )
        except Exception as error:  # whatever requests and MLflow raise
            raise _away(uri, cause_of(error)) from error
        is_fine = is_403_fine and answer.status_code == _FORBIDDEN
        if answer.status_code in _REFUSALS and not is_fine:
            problem = f"the MLflow server at {masked(uri)} {_REFUSALS[answer.status_code]}"
            raise BadInputError(problem, fix=CREDENTIALS)
        return answer

    answer = request(
        "/api/2.0/mlflow/experiments/get-by-name", params={"experiment_name": experiment}
    )
    try:
        body = answer.json()
        is_mlflow = answer.ok or "error_code" in body
    except ValueError:
        body, is_mlflow = {}, False
    if not is_mlflow:
        raise _away(uri, f"what is there answers {answer.status_code}, not as MLflow does")
    there = body.get("experiment", {})
    _refuse_deleted(uri, experiment, there.get("experiment_id"), there.get("lifecycle_stage"))
    place = there.get("artifact_location")
    is_new = place is None
    if is_new:  # it gets one below the server's root, as this one has
        asked = request(
            "/api/2.0/mlflow/experiments/get", params={"experiment_id": "0"}, is_403_fine=True
        )
        place = asked.json().get("experiment", {}).get("artifact_location") if asked.ok else None
    if place is None:
        return
    kind = urlparse(place)
    if kind.scheme in ("", "file") and not is_writable(Path(kind.path)):
        raise BadInputError(
            f"the MLflow server at {masked(uri)} keeps files of runs in {kind.path}, which cannot "
            "be written from here",
            fix="start it with --serve-artifacts and --artifacts-destination, or name a directory "
            "that both can write",
        )
    if kind.scheme == "mlflow-artifacts":
        folder = "" if is_new else kind.path.strip("/")
        path = "/".join(filter(None, (_FILES, folder, _CHECK)))
        stored = request(path, "PUT", data=b"checks that files can be stored\n", is_403_fine=True)
        if stored.status_code == _FORBIDDEN:
            if is_new:  # who makes an experiment may write below it, and not at the root
                return
            raise BadInputError(
                f"the MLflow server at {masked(uri)} does not let this user store files in "
                f"experiment {experiment!r} (403)",
                because=_reason(stored.text),
                fix=f"{CREDENTIALS}, or choose another tracking.experiment",
            )
        if not stored.ok:
            raise BadInputError(
                f"the MLflow server at {masked(uri)} cannot store files of runs "
                f"({stored.status_code})",
                because=_reason(stored.text),
                fix="let it write to its --artifacts-destination",
            )
        with suppress(BadInputError):  # who may write may not be let delete
            request(path, "DELETE")


def _refuse_deleted(uri: str, name: str, experiment_id: Any, stage: str | None) -> None:
    if stage == "deleted":
        raise ExperimentDeletedError(
            f"experiment {name!r} is deleted in {masked(uri)}",
            fix=f"mlflow experiments restore --experiment-id {experiment_id}, "
            "or choose another tracking.experiment",
        )


def find_experiment(
    client: MlflowClient, uri: str, state: TrackingState, name: str
) -> tuple[str, list[str]]:
    """Return the id of a study's experiment, which is made if it is missing, and notes on it.

    Args:
        client: Of the store.
        uri: Of the store.
        state: Of the study's last launch.
        name: That the study asks for.
    Raises:
        ExperimentDeletedError: It is deleted.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None or state.store != store_of(uri, experiment.experiment_id):
        renamed = _renamed_experiment(client, state, name, is_there=bool(experiment))
        if renamed is not None:
            return str(renamed.experiment_id), [
                f"the experiment {name!r} is called {renamed.name!r} in MLflow now; the study "
                "goes on there"
            ]
    if experiment is None:
        location = None
        database = database_of(uri)
        if database is not None:  # beside the database, not in the current directory
            location = (files_beside(database) / name).as_uri()
        try:
            return str(client.create_experiment(name, location, _EXPERIMENT_TAGS)), []
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:  # else another process was faster
                raise
    _refuse_deleted(uri, name, experiment.experiment_id, experiment.lifecycle_stage)
    return str(experiment.experiment_id), []


def store_of(uri: str, experiment_id: str) -> str:
    """Return how the state of a tracker names where its runs are."""
    return f"{masked(uri)}#{experiment_id}"


def _renamed_experiment(
    client: MlflowClient, state: TrackingState, name: str, *, is_there: bool
) -> Experiment | None:
    """Return the experiment that has a study's runs under another name than asked, if any.

    None as well if it is deleted, or the study has asked for another one before.
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
    is_kept = experiment.lifecycle_stage == "active" and experiment.name != name
    return experiment if is_kept else None


def _reason(text: str) -> str | None:
    try:
        text = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        text = re.sub(r"<[^>]*>", " ", text)
    return masked(" ".join(text.split())[:200]) or None

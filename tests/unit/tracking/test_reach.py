from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from dpsweep.foundation.errors import BadInputError
from dpsweep.tracking import mlflow_reach, refuse_unreachable
from dpsweep.tracking.base import StoreRefusedError
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.spool import Spool

EXPERIMENT = {"experiment": {"experiment_id": "1", "artifact_location": "mlflow-artifacts:/1"}}


class Stub:
    """Answers as a server would: a status and a body for each method, or one that says them of a
    path."""

    def __init__(self, **answers) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                stub.asked.append((self.command, self.path, self.headers.get("Authorization")))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = answers.get(self.command, (200, {}))
                status, body = answer(self.path) if callable(answer) else answer
                text = body if isinstance(body, str) else json.dumps(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_DELETE = do_POST = _answer

            def log_message(self, *_) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stub():
    stubs: list[Stub] = []

    def make(**answers) -> Stub:
        stubs.append(Stub(**answers))
        return stubs[-1]

    yield make
    for each in stubs:
        each.close()


def refused(uri: str) -> BadInputError:
    choice = SimpleNamespace(kind="mlflow", uri=uri, experiment=None)
    with pytest.raises(BadInputError) as caught:
        refuse_unreachable(choice, "digits")
    return caught.value


def test_a_server_that_takes_runs_and_files_passes(stub, monkeypatch) -> None:
    server = stub(GET=(200, EXPERIMENT))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "sesame")
    choice = SimpleNamespace(kind="mlflow", uri=server.uri, experiment=None)
    refuse_unreachable(choice, "digits")
    methods = [method for method, _, _ in server.asked]
    assert methods == ["GET", "PUT", "DELETE"]
    assert "experiment_name=digits" in server.asked[0][1]
    assert server.asked[1][1] == server.asked[2][1]  # nothing is left behind
    assert {header for _, _, header in server.asked} == {"Bearer sesame"}


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_one_clear_line(stub, monkeypatch, status: int) -> None:
    server = stub(GET=(status, "who are you"))
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "sesame")
    error = refused(server.uri)
    assert f"({status})" in error.message
    assert server.uri in error.message
    assert "MLFLOW_TRACKING_TOKEN" in error.fix
    assert "sesame" not in str(error) + error.fix


def test_files_that_cannot_be_stored_are_one_clear_line(stub, tmp_path) -> None:
    server = stub(GET=(200, EXPERIMENT), PUT=(500, {"message": "Read-only file system"}))
    error = refused(server.uri)
    assert "cannot store files of runs (500)" in error.message
    assert error.because == "Read-only file system"
    (tmp_path / "taken").write_text("")
    place = {"experiment": {"artifact_location": f"file://{tmp_path}/taken/files"}}
    local = stub(GET=(200, place))
    error = refused(local.uri)
    assert f"runs in {tmp_path}/taken/files, which cannot be written" in error.message
    assert "--serve-artifacts" in error.fix


FILES = "/api/2.0/mlflow-artifacts/artifacts"
DENIED = (403, "Permission denied")


def test_a_user_of_one_experiment_begins_a_study_in_it(stub) -> None:
    """MLflow's basic-auth judges the root of the files by another right than an experiment."""
    files = [f"{FILES}/1/dpsweep-check.txt"]
    server = stub(
        GET=(200, EXPERIMENT),
        PUT=lambda path: (200, {}) if path.startswith(f"{FILES}/1/") else DENIED,
        DELETE=DENIED,  # of who may write, and no more: what stays is one file
    )
    choice = SimpleNamespace(kind="mlflow", uri=server.uri, experiment=None)
    for _ in range(2):
        refuse_unreachable(choice, "digits")
    assert {path for method, path, _ in server.asked if method == "PUT"} == set(files)


def test_an_experiment_in_a_folder_of_its_own_is_tried_there(stub) -> None:
    place = {"experiment_id": "7", "artifact_location": "mlflow-artifacts:/workspaces/lab/7/"}
    server = stub(GET=(200, {"experiment": place}))
    refuse_unreachable(SimpleNamespace(kind="mlflow", uri=server.uri, experiment=None), "digits")
    paths = [path for _, path, _ in server.asked[1:]]
    assert paths == [f"{FILES}/workspaces/lab/7/dpsweep-check.txt"] * 2


@pytest.mark.parametrize("sees_default", [True, False])
def test_who_may_not_write_at_the_root_begins_a_new_experiment(stub, sees_default: bool) -> None:
    root = {"experiment": {"artifact_location": "mlflow-artifacts:/0"}}

    def get(path: str):
        if "get-by-name" in path:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST"}
        return (200, root) if sees_default else DENIED

    server = stub(GET=get, PUT=DENIED)
    refuse_unreachable(SimpleNamespace(kind="mlflow", uri=server.uri, experiment=None), "digits")
    paths = [path for method, path, _ in server.asked if method != "GET"]
    assert paths == [f"{FILES}/dpsweep-check.txt"] * sees_default


def test_who_may_not_write_into_an_experiment_is_told_so(stub) -> None:
    error = refused(stub(GET=(200, EXPERIMENT), PUT=DENIED).uri)
    assert "does not let this user store files in experiment 'digits' (403)" in error.message
    assert error.because == "Permission denied"
    assert error.fix.endswith("or choose another tracking.experiment")
    unknown = refused(stub(GET=(200, EXPERIMENT), PUT=(401, "who are you")).uri)
    assert "refuses the credentials (401)" in unknown.message


def test_something_else_at_the_address_is_told(stub) -> None:
    error = refused(stub(GET=(404, "<html>not here</html>")).uri)
    assert error.because == "what is there answers 404, not as MLflow does"


def test_nobody_at_the_address_is_told_at_once_and_without_the_password() -> None:
    started = time.monotonic()
    error = refused("http://me:sesame@127.0.0.1:9")
    assert time.monotonic() - started < 5
    assert error.message == "no MLflow server answers at http://me:***@127.0.0.1:9"
    assert error.because == "connection refused"
    assert "sesame" not in str(error)


def test_a_server_that_never_answers_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(mlflow_reach, "PATIENCE_S", 0.5)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        started = time.monotonic()
        error = refused(f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert time.monotonic() - started < 5
    assert error.because == "no answer within 0.5 s"


def test_patience_leaves_room_below_fifteen_seconds() -> None:
    assert mlflow_reach.PATIENCE_S < 15
    assert float(mlflow_reach._ENVIRONMENT["MLFLOW_HTTP_REQUEST_TIMEOUT"]) < 30


def test_nothing_is_asked_of_a_file_or_of_no_store() -> None:
    for uri in (None, "sqlite:///nowhere.db"):
        refuse_unreachable(SimpleNamespace(kind="mlflow", uri=uri, experiment=None), "digits")


@pytest.mark.slow
def test_a_token_that_expires_is_told_as_such_in_mid_study(stub, story, tmp_path) -> None:
    server = stub(GET=(401, "no"), POST=(401, "no"))
    journal = tmp_path / "journal.jsonl"
    story.whole()
    story.write(journal)
    messages: list[str] = []
    spool = Spool(
        journal,
        lambda: MLflowTracker(server.uri, "digits", tmp_path / "state.json"),
        on_message=messages.append,
        first_retry_s=0.05,
    )
    deadline = time.monotonic() + 60
    while not messages and time.monotonic() < deadline:
        time.sleep(0.05)
    spool.stop()
    assert len(messages) == 1
    assert "refuses the credentials (401); the study goes on without it; fix: set" in messages[0]
    with pytest.raises(StoreRefusedError):
        MLflowTracker(server.uri, "digits", tmp_path / "state.json")


@pytest.mark.slow
def test_a_call_does_not_wait_for_a_store_that_is_away(story, tmp_path) -> None:
    journal = tmp_path / "journal.jsonl"
    story.whole()
    story.write(journal)
    messages: list[str] = []

    def away() -> MemoryTracker:
        raise ConnectionError("http://me:sesame@host is away")

    spool = Spool(
        journal, away, on_message=messages.append, first_retry_s=30, address="http://host"
    )
    started = time.monotonic()
    with pytest.raises(ConnectionError):
        spool.call(lambda tracker: tracker.last_seq, timeout_s=60)
    assert time.monotonic() - started < 10
    spool.stop()
    assert messages[0].startswith("tracking store http://host cannot be reached (ConnectionError")
    assert "sesame" not in messages[0]


def test_an_artifact_store_that_cannot_be_written_holds_up_nothing_else(
    story, store_uri, state_path, client, monkeypatch
) -> None:
    from mlflow import MlflowClient

    from dpsweep.tracking.base import TrackingRefusedError

    def refuse(*_, **__) -> None:
        raise PermissionError(13, "Permission denied", "/files")

    monkeypatch.setattr(MlflowClient, "log_text", refuse)
    tracker = MLflowTracker(store_uri, "digits", state_path)
    events = story.whole(trials=2)
    with pytest.raises(TrackingRefusedError) as caught:
        tracker.handle(events)
    (line,) = caught.value.refused
    assert line.startswith("the artifact store cannot be written ([Errno 13] Permission denied")
    assert tracker.last_seq == events[-1]["seq"]
    assert client.get_run(tracker.run_id_of(1)).info.status == "FINISHED"


def test_a_new_study_in_a_deleted_experiment_is_refused(stub, story, store_uri, state_path, client):
    """It would train and charge, and nothing of it would be seen."""
    gone = {"experiment_id": "7", "lifecycle_stage": "deleted"}
    server = stub(GET=(200, {"experiment": {**EXPERIMENT["experiment"], **gone}}))
    MLflowTracker(store_uri, "digits", state_path)
    number = client.get_experiment_by_name("digits").experiment_id
    refuse_unreachable(SimpleNamespace(kind="mlflow", uri=store_uri, experiment=None), "digits")
    client.delete_experiment(number)
    for uri, experiment in ((server.uri, "7"), (store_uri, number)):
        error = refused(uri)
        assert f"experiment 'digits' is deleted in {uri}" in error.message
        assert error.fix == (
            f"mlflow experiments restore --experiment-id {experiment}, or choose another "
            "tracking.experiment"
        )
    assert [method for method, _, _ in server.asked] == ["GET"]  # no file is tried

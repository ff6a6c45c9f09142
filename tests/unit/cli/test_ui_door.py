"""The door before MLflow's UI: nobody passes without the token of its launch."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import entry_points

import pytest
from mlflow import MlflowClient
from mlflow_servers import BROWSER, free_port, page_text

from dpsweep.cli.ui_door import APP_NAME, TokenDoor, door
from dpsweep.tracking.mlflow_database import begin_database
from dpsweep.tracking.mlflow_reach import quiet

TOKEN = "s3same-_s3same"
COOKIE = f"dpsweep-ui-5000={TOKEN}"
PATHS = [
    "/",
    "/health",
    "/version",
    "/get-artifact",
    "/api/2.0/mlflow/runs/create",
    "//x",
    "/graphql",
]


class Behind:
    """An application that answers 200 and keeps the scopes of its requests."""

    def __init__(self):
        self.scopes = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
            await send({"type": "http.response.body", "body": b"inside"})


def asked(app, *, kind="http", method="GET", path="/", query="", cookies=(), port=5000):
    """Return what an application sends for one request."""
    sent = []
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:5000"), *((b"cookie", c.encode()) for c in cookies)],
        "server": ("127.0.0.1", port),
    }

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(app(scope, receive, send))
    return sent


@pytest.fixture
def behind():
    return Behind()


@pytest.fixture
def closed(behind):
    return TokenDoor(behind, TOKEN)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_is_answered_without_the_token(closed, behind, method, path):
    start, body = asked(closed, method=method, path=path)
    assert start["status"] == 403
    assert body["body"].count(b"\n") == 1
    assert behind.scopes == []


@pytest.mark.parametrize(
    "query",
    ["token=", "token=x", f"token={TOKEN}x", f"token={TOKEN[:-1]}", f"Token={TOKEN}", TOKEN, "token",
     f"a=token={TOKEN}", f"%74oken={TOKEN}", f"token={TOKEN.upper()}", "token=%C3%A9"],
)  # fmt: skip
def test_a_wrong_token_is_none(closed, behind, query):
    assert asked(closed, query=query)[0]["status"] == 403
    assert behind.scopes == []


@pytest.mark.parametrize(
    "cookie",
    ["", "dpsweep-ui-5000", "dpsweep-ui-5000=", f"{COOKIE}x", COOKIE[:-1], f"token={TOKEN}",
     f"dpsweep-ui-5001={TOKEN}", f"x{COOKIE}", f"a={COOKIE}"],
)  # fmt: skip
def test_a_wrong_cookie_is_none(closed, behind, cookie):
    assert asked(closed, cookies=[cookie])[0]["status"] == 403
    assert behind.scopes == []


def test_the_token_opens_and_gives_a_cookie_that_no_script_reads(closed, behind):
    start, body = asked(closed, query=f"a=1&token={TOKEN}&page_token=2")
    assert (start["status"], body["body"]) == (200, b"inside")
    cookie = f"{COOKIE}; HttpOnly; Path=/; SameSite=Strict".encode()
    assert start["headers"] == [(b"a", b"b"), (b"set-cookie", cookie)]
    assert behind.scopes[0]["query_string"] == b"a=1&page_token=2"  # nor does a log have it


@pytest.mark.parametrize("cookies", [[COOKIE], [f"a=b; {COOKIE};c"], ["bad cookie", COOKIE]])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_the_cookie_opens(closed, method, cookies):
    start, body = asked(closed, method=method, cookies=cookies, query="token=old")
    assert (start["status"], start["headers"]) == (200, [(b"a", b"b")])
    assert body["body"] == b"inside"


def test_a_websocket_is_closed_before_it_opens(closed, behind):
    assert asked(closed, kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert behind.scopes == []
    asked(closed, kind="websocket", cookies=[COOKIE])
    assert len(behind.scopes) == 1


def test_without_a_token_there_is_no_server(monkeypatch):
    monkeypatch.delenv("DPSWEEP_UI_TOKEN", raising=False)
    with pytest.raises(RuntimeError, match="DPSWEEP_UI_TOKEN"):
        door()
    monkeypatch.setenv("DPSWEEP_UI_TOKEN", "")
    with pytest.raises(RuntimeError, match="DPSWEEP_UI_TOKEN"):
        door()


def test_mlflow_is_told_of_the_door():
    (entry,) = entry_points(group="mlflow.app", name=APP_NAME)
    assert entry.load() is door


def status(url, method="GET", data=None, **headers):
    request = urllib.request.Request(url, data, {k: v for k, v in headers.items()}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_the_ui_of_mlflow_opens_with_its_token_alone(tmp_path):
    quiet()
    store = f"sqlite:///{tmp_path}/mlflow.db"
    begin_database(store)
    MlflowClient(store).create_experiment("pollution-sweep")
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "dpsweep", "ui", "--port", str(port)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        (address,) = re.findall(r"http\S+", process.stdout.readline())
        server, _, token = address.partition("/?token=")
        deadline = time.monotonic() + 120
        while True:
            try:
                assert status(server) == 403
                break
            except urllib.error.URLError:
                assert time.monotonic() < deadline
                time.sleep(0.3)
        create = f"{server}/api/2.0/mlflow/experiments/create"
        kind = {"Content-Type": "application/json"}
        cookie = {"Cookie": f"dpsweep-ui-{port}={token}"}
        assert status(create, "POST", b'{"name":"theirs"}', **kind) == 403
        files = f"{server}/api/2.0/mlflow-artifacts/artifacts/theirs.txt"
        assert status(files, "PUT", b"theirs") == 403
        assert status(f"{server}/health") == status(f"{server}/?token={token[:-1]}") == 403
        assert status(address) == status(f"{server}/version", **cookie) == 200
        # MLflow's own checks stay behind it.
        assert status(f"{server}/", Host="evil.example", **cookie) == 403
        assert status(create, "POST", b"{}", Origin="http://evil.example", **kind, **cookie) == 403
        assert status(create, "POST", b'{"name":"mine"}', **kind, **cookie) == 200
        assert [e.name for e in MlflowClient(store).search_experiments()] == [
            "mine", "pollution-sweep", "Default",
        ]  # fmt: skip
        if BROWSER:
            page = page_text(f"{address}#/experiments?workflowType=machine_learning", tmp_path)
            assert "pollution-sweep" in page
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

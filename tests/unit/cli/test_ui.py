"""The verb ui: where a study's pages are, and a server whose talk nobody needs."""

import re
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from whole_studies import cli_here

from dpsweep.cli.verbs import machine
from dpsweep.spec.tracking import TrackingSpec
from dpsweep.tracking.state import TrackingState

RUNS = "/#/experiments/7/runs"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a function that stands a study in, with the address of its store."""

    def stand_in(uri: str, **state: str) -> None:
        tracking = tmp_path / "tracking.json"
        TrackingState(study="digits", study_id="abc", **state).save(tracking)
        stored = SimpleNamespace(
            spec=SimpleNamespace(tracking=TrackingSpec(uri=uri)),
            files=SimpleNamespace(tracking=tracking),
        )
        monkeypatch.setattr(machine, "load_sweep", lambda name, root: stored)

    return stand_in


def test_a_server_s_pages_are_named_without_the_password(study):
    study("http://me:sesame@host:5000", store="http://me:***@host:5000#7", parent_run_id="p")
    done = cli_here("ui", "digits")
    assert done.returncode == 0
    trials, charts, own = done.stdout.splitlines()
    view = f"http://host:5000{RUNS}?workflowType=machine_learning&viewStateShareKey=dpsweep-abc"
    assert trials.split() == ["trials:", view]
    assert charts.split() == ["charts:", f"{view}&compareRunsMode=CHART"]
    assert own.split() == ["study:", f"http://host:5000{RUNS}/p?workflowType=machine_learning"]
    assert "sesame" not in done.stdout + done.stderr


def test_a_study_without_a_run_yet_names_its_server_only(study):
    study("http://me:sesame@host:5000")
    assert cli_here("ui", "digits").stdout == "http://me:***@host:5000\n"


def test_a_local_server_is_quiet_unless_it_fails(study, tmp_path, monkeypatch):
    (tmp_path / "mlflow.db").touch()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    study(uri, store=f"{uri}#7", parent_run_id="p")
    program = tmp_path / "server"
    monkeypatch.setattr(machine.sys, "executable", str(program))
    tokens = set()
    for code in (0, 3):
        program.write_text(
            f"#!/bin/sh\necho 'INFO talk'\necho \"$@\" > {tmp_path}/asked\n"
            f"echo $DPSWEEP_UI_TOKEN > {tmp_path}/token\nexit {code}\n"
        )
        program.chmod(0o755)
        done = cli_here("ui", "digits", "--port", 5999)
        assert done.returncode == code
        assert ("INFO talk" in done.stderr) == (code != 0)
        assert "MLflow UI on http://127.0.0.1:5999" in done.stderr
        token = Path(tmp_path / "token").read_text().strip()
        assert len(token) >= 40
        page = f"http://127.0.0.1:5999/?token={token}{RUNS.removeprefix('/')}"
        assert f"{page}?workflowType=machine_learning" in done.stdout
        tokens.add(token)
    assert len(tokens) == 2  # each launch has its own
    asked = Path(tmp_path / "asked").read_text()
    assert f"--backend-store-uri {uri} --host 127.0.0.1 --port 5999" in asked
    assert "--app-name dpsweep" in asked
    assert token not in asked  # others can read command lines


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("127.8.0.1", False), ("localhost", False), ("0.0.0.0", True)],
)
def test_an_address_that_others_reach_has_a_warning(study, tmp_path, monkeypatch, host, is_open):
    (tmp_path / "mlflow.db").touch()
    study(f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(machine.sys, "executable", "/bin/true")
    done = cli_here("ui", "digits", "--port", 0, "--host", host)
    assert re.fullmatch(rf"ui: +http://{re.escape(host)}:0/\?token=[\w-]{{40,}}\n", done.stdout)
    assert ("whoever has an address with its token" in done.stderr) == is_open


def test_a_port_that_is_taken_is_named_before_any_address(study, tmp_path):
    (tmp_path / "mlflow.db").touch()
    study(f"sqlite:///{tmp_path}/mlflow.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli_here("ui", "digits", "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert f"--port {port + 1}" in done.stderr


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_the_server_ends_with_the_command(study, tmp_path, monkeypatch, name):
    (tmp_path / "mlflow.db").touch()
    study(f"sqlite:///{tmp_path}/mlflow.db")
    program, pid = tmp_path / "server", tmp_path / "pid"
    program.write_text(
        f"#!/bin/sh\nsleep 60 &\necho $! > {pid}\nsleep 1\nkill -{name} $PPID\nwait\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(machine.sys, "executable", str(program))
    number = signal.Signals[f"SIG{name}"]
    before = signal.getsignal(number)
    assert cli_here("ui", "digits", "--port", 0).returncode == 128 + number
    assert signal.getsignal(number) == before
    worker, deadline = Path("/proc") / pid.read_text().strip(), time.monotonic() + 10
    while worker.exists() and "Z" not in (worker / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
def test_a_port_that_there_is_not_is_refused(study, tmp_path, port):
    (tmp_path / "mlflow.db").touch()
    study(f"sqlite:///{tmp_path}/mlflow.db")
    done = cli_here("ui", "digits", "--port", port)
    assert done.returncode == 2
    assert done.stderr == f"error: there is no port {port}\n  fix: --port 5000, or any to 65535\n"

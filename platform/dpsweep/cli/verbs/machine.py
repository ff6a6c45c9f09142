"""The verbs about this machine: MLflow's UI on a store that is here, and what is installed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from dpsweep.cli.base import Json, Output, Root, say
from dpsweep.cli.completion import study_names
from dpsweep.cli.doctor import diagnose, feature_stores, whole_gib
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.ui_door import APP_NAME, TOKEN_VARIABLE
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import plain
from dpsweep.results.study import load_sweep
from dpsweep.spec.tracking import TrackingSpec, masked
from dpsweep.study.roots import default_root
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.views import addresses

_SHOWN_LINES = 20  # of a server that has failed
_LAST_PORT = 65535


def ui(
    name: Annotated[
        str | None, typer.Argument(help="Name of a study.", autocompletion=study_names)
    ] = None,
    root: Root = None,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option()] = 5000,
) -> None:
    """Open the MLflow UI on a study's tracking store, until Ctrl-C.

    Its address has a token, which is new each time: nobody gets in without it.
    """
    study = load_sweep(name, root=root) if name else None
    tracking = study.spec.tracking if study else TrackingSpec()
    if tracking.kind != "mlflow":
        raise BadInputError(
            f"study {name!r} is tracked by {tracking.kind}, which MLflow's UI does not show",
            fix=f"look at {masked(str(tracking.uri))}",
        )
    uri = tracking.uri
    if uri is None:
        raise BadInputError(f"study {name!r} has no tracking store", fix="set tracking.uri")
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise BadInputError(f"there is no database at {uri}", fix="name a study: dpsweep ui NAME")
    is_server = uri.startswith(("http://", "https://"))
    server = uri if is_server else f"http://{host}:{port}"
    state = TrackingState.load(study.files.tracking) if study else TrackingState()
    token = "" if is_server else secrets.token_urlsafe(32)
    query = "" if is_server else f"?token={token}"
    shown = addresses(server, state, query)
    if not (is_server or shown):
        shown = {"ui": f"{server}/{query}"}
    if not is_server:
        _refuse_taken(host, port)
        say(f"MLflow UI on {server} in some seconds (Ctrl-C ends it)")
        if not _is_loopback(host):
            say(
                "warning: others reach it too, in plain http; whoever has an address with its "
                "token can read and change what you can"
            )
    elif not shown:
        print(plain(masked(uri)))
    for page, address in shown.items():
        print(plain(f"{page + ':':8}{address}"), flush=True)
    if is_server:
        return
    raise typer.Exit(_serve(uri, host, port, token))


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _refuse_taken(host: str, port: int) -> None:
    """Refuse a port that another program listens on; whose pages would open else."""
    if not 0 <= port <= _LAST_PORT:
        raise BadInputError(f"there is no port {port}", fix=f"--port 5000, or any to {_LAST_PORT}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInputError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                fix=f"choose another port: --port {port + 1 if port < _LAST_PORT else 5000}",
            ) from None


def _serve(uri: str, host: str, port: int, token: str) -> int:
    """Run MLflow's server until it ends, behind a door; its talk is shown only if it fails.

    The token is in the environment, as others can read command lines. The server ends with this
    process, whichever signal that is sent, but for SIGKILL.
    """
    import subprocess

    command = [sys.executable, "-W", "ignore", "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    command += ["--app-name", APP_NAME]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (
        _leaving(),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**settings, **os.environ, TOKEN_VARIABLE: token},
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            last = deque(process.stdout, maxlen=_SHOWN_LINES)
        finally:
            # Its workers are in its group; one that has ended by itself has left none.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
    if process.returncode:
        say("".join(last).rstrip())
    return process.returncode


@contextmanager
def _leaving() -> Iterator[None]:
    """Leave on SIGTERM, and where a terminal is closed, as on Ctrl-C."""
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove frozen features that no study is using.")
    ] = False,
    root: Root = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Check this installation and machine; exit 1 if something is broken."""
    folder = root or default_root()
    if root is not None and not root.is_dir():
        raise BadInputError(f"no folder {root}", fix="give the folder that the studies are in")
    if clean:
        stores = feature_stores(folder)
        removed = [whole_gib(store.clean()) for store in stores]
        kept = [whole_gib(store.num_bytes()) for store in stores]
        rows = [
            {"features": str(store.root), "removed_gib": gone, "kept_gib": left}
            for store, gone, left in zip(stores, removed, kept)
        ]
        print_records(rows, output)
        if any(kept):
            say(f"at most {sum(kept)} GiB are in use and stay")
        return
    findings = diagnose(folder)
    print_records(findings, output)
    if any(finding["status"] == "broken" for finding in findings):
        raise typer.Exit(1)

"""A Ray without the processes that a sweep on one machine has no use for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from dpsweep.cluster.worker import TRIED
from dpsweep.foundation.process.replacing import replaced

#: Methods of Ray's ``Node``, and what they would start. ``ray.init`` has no switch for them.
_UNUSED = (
    "start_api_server",  # the dashboard's server, also without a dashboard; Ray waits for it
    "start_monitor",  # the autoscaler
    "start_log_monitor",  # sends the output of workers to the driver, which wants none
)
#: Of the agent that tells the dashboard about this machine. -1 says that none is in use.
_PORTS_OF_DASHBOARD = (
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
)
#: Seconds between two looks for a raylet, and for all of them.
_LOOK_S, _PATIENCE_S = 0.01, 30.0
_STANDBY = [sys.executable, "-I", "-S", str(Path(__file__).with_name("standby.py"))]


@contextmanager
def lean_ray() -> Iterator[None]:
    """Let a Ray that is started meanwhile have a GCS, a raylet and workers alone.

    Five interpreters fewer, of which ``ray.init`` waits for most: for two of them bare ones stand
    by. The agent that makes runtime environments starts with the first one that is asked for. A
    version of Ray that names things otherwise starts them all.

    Under ``uv run`` Ray would hand a copy of this folder, whatever is in it, to its processes, and
    let each start by ``uv``; they are on this machine, and run by this interpreter as it is.
    """
    from ray._private import ray_constants, services
    from ray._private.node import Node

    instead: dict[str, Any] = {}
    if ray.__version__.startswith(TRIED):
        instead["start_ray_process"] = _without_agents(services.start_ray_process)
        instead["get_node"] = _awaited(services.get_node)
    nothing = dict.fromkeys(_UNUSED, lambda *arguments, **options: None)
    uv = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": False}
    with replaced(Node, nothing), replaced(services, instead), replaced(ray_constants, uv):
        yield


def _awaited(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Return what asks for a node once it is there: asked before, Ray waits a second or more."""

    def get_soon(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + _PATIENCE_S
        with suppress(Exception):  # the call itself meets it, too, and Ray makes that again
            gcs = _raylet().GcsClient(address=gcs_address)
            while not gcs.get_all_node_info() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        return get_node(gcs_address, node_id)

    return get_soon


def _without_agents(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return what starts a process of Ray; the agents of a raylet stand by."""

    def start_process(command: Sequence[str], kind: str, *arguments: Any, **options: Any) -> Any:
        words = _standing_by(command) if kind == "raylet" else command
        return start(words, kind, *arguments, **options)

    return start_process


def _standing_by(command: Sequence[str]) -> list[str]:
    """Return the command of a raylet whose agents stand by."""
    options = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    session, node, ports = options["--session_dir"], options["--node_id"], _raylet()
    for name in _PORTS_OF_DASHBOARD:
        ports.persist_port(session, node, getattr(ports, name), -1)
    file = ports.get_port_filename(node, ports.RUNTIME_ENV_AGENT_PORT_NAME)
    listening = [*_STANDBY, str(Path(session, file)), options["--node_ip_address"]]
    agent = "--runtime_env_agent_command"
    instead = {
        "--dashboard_agent_command": subprocess.list2cmdline(_STANDBY),
        agent: f"{subprocess.list2cmdline(listening)} {options[agent]}",
    }
    return [
        f"{name}={instead[name]}" if name in instead else word
        for word in command
        for name in [word.partition("=")[0]]
    ]


def _raylet() -> Any:
    """Return Ray's compiled module, whose stub names little of it."""
    from ray import _raylet

    return _raylet

"""A Ray with few processes: what stands by for the others, and what becomes of another Ray."""

import os
import select
import shlex
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray import _raylet
from ray._private import ray_constants, services
from ray._private.node import Node

from dpsweep.cluster import lean
from dpsweep.cluster.lean import lean_ray

STANDBY = [sys.executable, "-I", "-S", str(Path(lean.__file__).with_name("standby.py"))]
NODE = "ab12"
#: Takes its time, writes its port as Ray's does and its process, and listens a while after that;
#: then it answers whoever calls, in capitals.
AGENT = [
    sys.executable,
    "-c",
    """
import os, socket, sys, time
time.sleep(0.5)
server = socket.socket()
server.bind(("127.0.0.1", 0))
open("process", "w").write(str(os.getpid()))
os.unlink("port")
time.sleep(0.2)
open("port", "w").write(str(server.getsockname()[1]))
time.sleep(0.5)
server.listen()
while True:
    with server.accept()[0] as caller:
        while said := caller.recv(100):
            caller.sendall(said.upper())
""",
]


def test_ray_has_its_own_back_after_a_lean_start():
    def own():
        yield from (Node.start_api_server, Node.start_monitor, Node.start_log_monitor)
        yield from (services.start_ray_process, services.get_node)
        yield ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV

    before = list(own())
    with lean_ray():
        node = SimpleNamespace()
        assert Node.start_api_server(node, include_dashboard=False, raise_on_failure=False) is None
        assert Node.start_monitor(node) is None
        assert not ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV
        assert not [mine for mine, theirs in zip(own(), before) if mine is theirs]
    assert list(own()) == before


def started(monkeypatch, command, kind):
    """Return the command of a process that a lean Ray starts."""
    monkeypatch.setattr(services, "start_ray_process", lambda command, kind, **more: command)
    with lean_ray():
        return services.start_ray_process(command, kind, fate_share=True)


@pytest.fixture
def raylet(tmp_path):
    """The command of a raylet."""
    return [
        "raylet", "--head", f"--session_dir={tmp_path}", f"--node_id={NODE}",
        "--node_ip_address=127.0.0.1", "--dashboard_agent_command=dashboard --listen-port=0",
        f"--runtime_env_agent_command={shlex.join(AGENT)} --runtime-env-agent-port=0",
    ]  # fmt: skip


def port(folder, name):
    return (folder / _raylet.get_port_filename(NODE, name)).read_text()


def test_the_agents_of_a_raylet_stand_by(monkeypatch, raylet, tmp_path):
    *same, dashboard, environments = started(monkeypatch, raylet, "raylet")
    assert same == raylet[:-2]
    assert shlex.split(dashboard.removeprefix("--dashboard_agent_command=")) == STANDBY
    file = str(tmp_path / _raylet.get_port_filename(NODE, "runtime_env_agent_port"))
    assert shlex.split(environments.removeprefix("--runtime_env_agent_command=")) == [
        *STANDBY, file, "127.0.0.1", *AGENT, "--runtime-env-agent-port=0",
    ]  # fmt: skip
    unused = ("dashboard_agent_listen_port", "metrics_agent_port", "metrics_export_port")
    assert {port(tmp_path, name) for name in unused} == {"-1"}


def test_another_process_and_another_ray_are_started_as_they_are(monkeypatch, raylet, tmp_path):
    assert started(monkeypatch, ["gcs_server", "--x=1"], "gcs_server") == ["gcs_server", "--x=1"]
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    assert started(monkeypatch, raylet, "raylet") == raylet
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def standing_by(tmp_path):
    """Stands by for an agent; its port file, and a pipe that its raylet holds."""
    file = tmp_path / "port"
    command = [*STANDBY, str(file), "127.0.0.1", *AGENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path) as process:
        deadline = time.monotonic() + 20
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield process, int(file.read_text())
        process.kill()


def call(port, *words):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for word in words:
            connection.sendall(word)
            assert connection.recv(100) == word.upper()


def test_an_agent_starts_when_it_is_called_and_its_port_is_never_free(standing_by, tmp_path):
    """Who listens there is told the token of this Ray, and whatever it runs."""
    process, port = standing_by
    assert process.poll() is None
    with socket.create_connection(("127.0.0.1", port)):
        for _ in range(20):
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", port))
            time.sleep(0.1)
    for _ in range(2):
        call(port, b"hello", b"again")
    assert (tmp_path / "process").read_text() == str(process.pid)  # a child of the raylet's
    assert (tmp_path / "port").read_text() != str(port)


def test_what_stands_by_ends_with_its_raylet(standing_by):
    process, port = standing_by
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with subprocess.Popen(STANDBY, stdin=subprocess.PIPE) as idle:
        with pytest.raises(subprocess.TimeoutExpired):
            idle.wait(timeout=0.5)
        idle.stdin.close()
        assert idle.wait(timeout=20) == 0


def test_what_hands_on_to_an_agent_ends_with_its_raylet(standing_by):
    process, port = standing_by
    call(port, b"hello")
    process.stdin.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    pytest.fail("it still listens")


def test_the_end_of_an_agent_is_seen_by_its_raylet(tmp_path):
    """By the end of a pipe, which what hands on to the agent must not hold."""
    file = tmp_path / "port"
    mine, its = os.pipe()
    command = [*STANDBY, str(file), "127.0.0.1", *AGENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, cwd=tmp_path, pass_fds=[its]
    ) as process, os.fdopen(mine) as pipe:  # fmt: skip
        os.close(its)
        deadline = time.monotonic() + 20
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        call(int(file.read_text()), b"hello")
        process.kill()
        assert select.select([pipe], [], [], 20) == ([pipe], [], [])
        assert pipe.read() == ""


def test_a_caller_that_fails_costs_the_others_nothing(standing_by, tmp_path):
    _, port = standing_by
    call(port, b"hello")
    callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    for caller in callers:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        caller.close()  # as one that is killed
    call(port, b"again")


def test_a_node_is_asked_for_once_it_is_there(monkeypatch):
    looks, asked = [], []

    class Gcs:
        def __init__(self, address):
            looks.append(address)

        def get_all_node_info(self):
            looks.append("look")
            return {"node": 1} if looks.count("look") == 3 else {}

    monkeypatch.setattr(_raylet, "GcsClient", Gcs)
    monkeypatch.setattr(services, "get_node", lambda *given: asked.append(given) or "the node")
    with lean_ray():
        assert services.get_node("1.2.3.4:5", NODE) == "the node"
    assert looks == ["1.2.3.4:5", "look", "look", "look"]
    assert asked == [("1.2.3.4:5", NODE)]


def test_a_wait_for_a_node_that_fails_leaves_it_to_ray(monkeypatch):
    """Which asks again after a RuntimeError, and after no other."""

    def fail(address):
        raise ConnectionError("the GCS is not there")

    monkeypatch.setattr(_raylet, "GcsClient", fail)
    monkeypatch.setattr(services, "get_node", lambda *given: given)
    with lean_ray():
        assert services.get_node("1.2.3.4:5", NODE) == ("1.2.3.4:5", NODE)


WHOLE = """
import contextlib
import os
from pathlib import Path
import ray
from dpsweep.cluster.local import LocalTarget
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

def read(pid, name):
    "Nothing of one that has ended."
    with contextlib.suppress(OSError):
        return (Path("/proc") / pid / name).read_text()

def commands():
    "Of this process and of all that come from it."
    stats = {e.name: read(e.name, "stat") for e in Path("/proc").glob("[0-9]*")}
    mine = {str(os.getpid())}
    for _ in range(4):
        mine |= {pid for pid, stat in stats.items() if stat and stat.rpartition(")")[2].split()[1] in mine}
    return [line.replace(chr(0), " ") for pid in mine if (line := read(pid, "cmdline"))]

def count(*names):
    raylet = "raylet/raylet "  # names its agents in its own command
    now = [command for command in commands() if raylet not in command]
    print(*(sum(name in command for command in now) for name in names))

def say():
    return os.environ.get("SAID")

with LocalTarget(ClusterSpec(num_cpus=1), ResourcesSpec(), Path("study")):
    count("standby.py", "Agent", "dashboard")
    task = ray.remote(say)
    print(ray.get(task.remote()))
    print(ray.get(task.options(runtime_env={"env_vars": {"SAID": "so"}}).remote()))
    count("standby.py", "RuntimeEnvAgent", "dashboard")
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_of_this_machine_has_no_agents_until_one_is_called(tmp_path):
    """Nothing here calls one; a trainable of another package might."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WHOLE],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2 0 0", "None", "so", "2 1 0"]

"""A Ray of a study's own: what it is given, and when it is refused; no cluster is started."""

import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._raylet import AuthenticationMode, get_authentication_mode

from dpsweep.cluster import base, local, worker
from dpsweep.cluster.local import LocalTarget
from dpsweep.cluster.token import own_token
from dpsweep.foundation.errors import RayLostError, ResourceError
from dpsweep.running.nodes import warm
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def settings():
    return {name: os.environ.get(name) for name in NAMES}


@pytest.fixture
def switched_off(monkeypatch):
    """Settings of somebody who has turned the token off."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    return settings()


def test_a_token_of_its_own_holds_for_its_time_only(switched_off):
    tokens = set()
    for _ in range(2):
        with own_token():
            assert get_authentication_mode() == AuthenticationMode.TOKEN
            assert "RAY_AUTH_TOKEN_PATH" not in os.environ
            tokens.add(os.environ["RAY_AUTH_TOKEN"])
        assert settings() == switched_off
        assert get_authentication_mode() != AuthenticationMode.TOKEN
    assert len(tokens) == 2
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens)


class Ray:
    """Stands for Ray, which opens the folder that it is given, or worse."""

    def __init__(self, opens):
        self.opens, self.given, self.is_up, self.environment = opens, {}, False, {}

    def init(self, **given):
        self.given, self.is_up, self.environment = given, True, settings()
        os.makedirs(given["_temp_dir"])
        os.chmod(self.opens or given["_temp_dir"], 0o777)

    def is_initialized(self):
        return self.is_up

    def shutdown(self):
        self.is_up = False

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 8.0}}]


def target_with(monkeypatch, path, ray):
    for name in ("init", "is_initialized", "shutdown", "nodes"):
        monkeypatch.setattr(local.ray, name, getattr(ray, name))
    return LocalTarget(ClusterSpec(), ResourcesSpec(), path, private_path=path)


def test_ray_gets_a_folder_in_the_private_directory_and_a_token(
    tmp_path, monkeypatch, switched_off
):
    tmp_path.chmod(0o700)
    ray = Ray(opens=None)
    with target_with(monkeypatch, tmp_path, ray):
        assert ray.given["_temp_dir"] == str(tmp_path / "ray")
        assert ray.environment["RAY_AUTH_MODE"] == "token"
        assert ray.environment["RAY_AUTH_TOKEN"] == os.environ["RAY_AUTH_TOKEN"]
    assert not ray.is_up
    assert settings() == switched_off


def test_a_ray_of_any_study_writes_where_nobody_else_can(monkeypatch, switched_off):
    """Ray follows links in its folder, and whoever can enter that lays them."""
    ray = Ray(opens=None)
    with target_with(monkeypatch, None, ray):
        folder = Path(ray.given["_temp_dir"])
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert not folder.parent.exists()


def test_a_directory_that_ray_has_opened_is_refused_before_a_trial_runs(
    tmp_path, monkeypatch, switched_off
):
    tmp_path.chmod(0o700)
    ray = Ray(opens=tmp_path)
    with (
        pytest.raises(ResourceError, match="not closed to other users"),
        target_with(monkeypatch, tmp_path, ray),
    ):
        pytest.fail("trials would run")
    assert not ray.is_up
    assert settings() == switched_off


def test_a_ray_that_was_begun_is_up_when_it_is_entered_and_gone_when_it_is_left(
    tmp_path, monkeypatch, switched_off
):
    tmp_path.chmod(0o700)
    ray = Ray(opens=None)
    target = target_with(monkeypatch, tmp_path, ray)
    before = dict(os.environ)
    target.begin(num_trials=1000)
    with target:
        assert ray.given["_temp_dir"] == str(tmp_path / "ray")
        # Of the thread that has started them: Ray's processes end with it.
        assert len(threads_of_ray()) == 1
    assert not ray.is_up
    assert settings() == switched_off
    assert not [thread for thread in threads_of_ray() if not ended(thread)]
    for name in ("RAY_preload_python_modules", "RAY_prestart_worker_first_driver"):
        assert os.environ.get(name) == before.get(name)


def test_sigterm_stays_ours_when_ray_is_left(tmp_path, monkeypatch, switched_off):
    """Ray gives it to the system as it ends, whichever thread leaves it."""
    tmp_path.chmod(0o700)
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    library = ctypes.CDLL(None)

    class Resetting(Ray):
        def shutdown(self):
            super().shutdown()
            library.signal(int(signal.SIGTERM), None)  # the system's, behind Python's back

    try:
        target = target_with(monkeypatch, tmp_path, Resetting(opens=None))
        target.begin()
        target.__enter__()
        leaving = threading.Thread(target=target.disconnect)
        leaving.start()
        leaving.join()
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


def threads_of_ray():
    return [thread for thread in threading.enumerate() if thread.name == "dpsweep-ray"]


def ended(thread):
    thread.join(5)
    return not thread.is_alive()


def test_a_ray_that_was_begun_and_never_entered_is_left_too(tmp_path, monkeypatch, switched_off):
    tmp_path.chmod(0o700)
    ray = Ray(opens=None)
    target = target_with(monkeypatch, tmp_path, ray)
    target.begin()
    target.disconnect()
    assert ray.given
    assert not ray.is_up
    assert settings() == switched_off


def failing_target(monkeypatch, directory, error):
    """Return a target whose Ray raises an error as it begins, behind."""

    def fail(**given):
        raise error

    directory.chmod(0o700)
    target = target_with(monkeypatch, directory, Ray(opens=None))
    monkeypatch.setattr(local.ray, "init", fail)
    target.begin()
    return target


def test_what_failed_behind_is_told_on_entering(tmp_path, monkeypatch, switched_off):
    target = failing_target(monkeypatch, tmp_path, ConnectionError("no room in /dev/shm"))
    with pytest.raises(RayLostError, match=r"cannot be started .*no room in /dev/shm"), target:
        pytest.fail("trials would run")
    target.disconnect()
    assert settings() == switched_off


def test_a_folder_with_too_long_a_path_says_what_to_shorten(tmp_path, monkeypatch, switched_off):
    words = "validate_socket_filename failed: AF_UNIX path length cannot exceed 107"
    target = failing_target(monkeypatch, tmp_path, OSError(words))
    with pytest.raises(ResourceError, match="cannot be started") as caught, target:
        pytest.fail("trials would run")
    assert "RAY_TMPDIR" in caught.value.fix


@pytest.mark.parametrize(
    ("num_trials", "resources", "is_started"),
    [(8, {}, "1"), (7, {}, "0"), (None, {}, "0"), (100, {"cpu": 2}, "0"), (100, {"cpu": 0.5}, "1")],
)
def test_processes_are_started_beforehand_where_a_trial_comes_for_each(
    tmp_path, monkeypatch, switched_off, num_trials, resources, is_started
):
    seen = {}
    monkeypatch.setattr(local.ray, "init", lambda **given: seen.update(os.environ))
    monkeypatch.setattr(local.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(local.ray, "shutdown", lambda: None)
    target = LocalTarget(ClusterSpec(num_cpus=8), ResourcesSpec(**resources), tmp_path)
    target.begin(num_trials)
    target.disconnect()
    assert seen["RAY_prestart_worker_first_driver"] == is_started
    assert seen["RAY_preload_python_modules"] == warm.__name__
    assert seen["DPSWEEP_WORKER_THREADS"] == str(max(1, int(resources.get("cpu", 1))))
    # Ten seconds in all, as Ray has it, and not one of them for a miss by a hair.
    wait, tries = (
        int(seen[f"RAY_raylet_client_{name}"])
        for name in ("connect_timeout_milliseconds", "num_connect_attempts")
    )
    assert (wait, wait * tries) == (50, 10_000)
    assert seen["RAY_enable_pipe_based_agent_to_parent_health_check"] == "1"  # whoever says else


def test_a_target_of_another_package_waits_for_the_study(tmp_path, monkeypatch):
    """Its ``connect`` may write into the study's directory, which is not there yet."""

    class Hut(LocalTarget):
        def connect(self):
            pytest.fail("too early")

    target = Hut(ClusterSpec(), ResourcesSpec(), tmp_path / "studies" / "s")
    target.begin(10)
    target.disconnect()


def run_worker(home, *, then):
    """Import what a worker preloads, in a process of its own; return what ``then`` prints."""
    environment = {
        **os.environ, "DPSWEEP_WORKER_HOME": home, "DPSWEEP_WORKER_THREADS": "3",
        "OMP_NUM_THREADS": "7",
    }  # fmt: skip
    load = "try_import_each_module(['dpsweep.running.nodes.warm'])"  # as Ray does
    code = f"import sys, os; from ray._private.utils import try_import_each_module; {load}; {then}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_worker_loads_what_trials_need_with_threads_of_its_own():
    home = str(Path(worker.__file__).parent)
    then = "print('dpsweep.trainables.execution.actor' in sys.modules, 'torch' in sys.modules, "
    then += "os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])"
    assert run_worker(home, then=then) == "True True 3 3"


@pytest.mark.slow
@pytest.mark.skipif(
    not ray.__version__.startswith(worker.TRIED), reason="another Ray, of which all is loaded"
)
def test_a_worker_leaves_pandas_data_sets_and_tunes_loop_to_those_who_use_them():
    home = str(Path(worker.__file__).parent)
    names = ("pandas.core", "ray.data.dataset", "ray.tune.tuner", "scipy.special")
    then = f"print([n for n in {names} if n in sys.modules]); import pandas.api.types, ray.data; "
    then += "from ray.tune.schedulers import FIFOScheduler; "
    then += (
        "from ray import train, tune; print(tune.Tuner.__name__, pandas.DataFrame([[1]]).shape, "
    )
    then += "ray.data.Dataset.__name__)"
    assert run_worker(home, then=then).splitlines() == ["[]", "Tuner (1, 1) Dataset"]


@pytest.mark.slow
def test_a_worker_searches_for_garbage_again_but_not_in_what_it_has_loaded():
    """A search of all of it takes .2 s, in the middle of a trial."""
    then = "import gc; print(gc.isenabled(), gc.get_freeze_count() > 100_000)"
    assert run_worker(str(Path(worker.__file__).parent), then=then) == "True True"


def test_a_worker_forgets_a_copy_that_is_not_the_drivers(tmp_path):
    then = "print([n for n in sys.modules if n.split('.')[0] == 'dpsweep'])"
    assert run_worker(str(tmp_path), then=then) == "[]"


#: Stands for a raylet, its worker, and what a trial in this has started.
FAMILY = """
import subprocess, sys
program = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
worker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
print(worker.pid, flush=True)
worker.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_what_comes_from_ray_ends_with_it():
    """A raylet's own end takes a second at times, and its workers would wait for that."""
    raylet = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    family = [Path(f"/proc/{int(raylet.stdout.readline())}/stat") for _ in range(2)]
    assert all(process.exists() for process in family)
    asked = []
    node = SimpleNamespace(live_processes=lambda: [("raylet", raylet)])
    local._kill_all(node, lambda *given, **more: asked.append((given, more)), 1, check_alive=False)
    assert asked == [((1,), {"check_alive": False})]
    assert raylet.wait(timeout=10) == -signal.SIGKILL
    raylet.stdout.close()
    deadline = time.monotonic() + 10
    while any(is_running(process) for process in family):
        assert time.monotonic() < deadline
        time.sleep(0.01)


NAMED = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(15, "\u00e4".encode() * 10)  # PR_SET_NAME keeps 15 bytes
print("here", flush=True)
input()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_name_that_is_no_text_keeps_no_process_alive():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", NAMED], stdin=pipe, stdout=pipe) as odd:
        assert odd.stdout.readline() == b"here\n"
        with pytest.raises(UnicodeDecodeError):
            Path(f"/proc/{odd.pid}/stat").read_text()
        assert odd.pid in local._descendants_of({os.getpid()})
        odd.kill()


def is_running(process):
    try:  # whoever adopts a process may not have looked yet: it is a zombie then
        return process.read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.mark.ray
@pytest.mark.slow
def test_references_that_go_while_ray_ends_do_not_end_the_process():
    """With ``ray.shutdown`` in its place this ends with status 1 (each time that it was tried)."""
    program = """
import threading, time
import ray
from dpsweep.cluster.leaving import leave_ray
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
references = [ray.put(number) for number in range(4000)]
leaving = threading.Thread(target=leave_ray)
leaving.start()
while leaving.is_alive() and references:
    references.pop()
    time.sleep(0.002)
leaving.join()
print("whole", len(references) < 4000, ray.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "whole True False"


def test_a_fork_of_a_process_that_has_used_ray_is_refused(monkeypatch, tmp_path):
    """It would wait for ever: Ray's connections do not live on there."""
    monkeypatch.setattr(base, "_connected_in", [os.getpid()])
    target = LocalTarget(ClusterSpec(), ResourcesSpec(), tmp_path)
    target._prepare()
    parent = base._connected_in
    child = os.fork()
    if not child:
        try:
            with pytest.raises(ResourceError, match="forked from one that has used Ray"):
                target.begin()
            with pytest.raises(ResourceError, match="forked from one that has used Ray"):
                target.__enter__()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parent == [os.getpid()]

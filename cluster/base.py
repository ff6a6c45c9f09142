"""The interface of a cluster target: connect, say what a trial may ask for, disconnect."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpsweep.cluster.early import most_at_once, refuse_impossible
from dpsweep.cluster.leaving import leave_ray
from dpsweep.cluster.private_directory import refuse_open
from dpsweep.cluster.worker import worker_environment
from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import ResourceError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

#: Processes in which Ray was connected to: this one, or what this one was forked from.
_connected_in: list[int] = []
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class ClusterTarget(ABC):
    """A Ray cluster for the time of one run.

    Entering connects; leaving disconnects only what entering connected: a Ray runtime that was up
    in this process before stays up.

    Args:
        spec: The spec's ``cluster`` section.
        resources: What one trial asks for.
        study_path: Directory of the study; every node must be able to write there.
        private_path: A directory that nobody else can open, for all that Ray writes, if nobody
            else may see that or talk to this Ray.
        lock: The study's lock, which the driver holds, if every node must see that it does.

    Attributes:
        is_secret: Whether it keeps ``private_path`` to this user alone, and lets nobody else talk
            to its Ray; accounting select runs on no other target.
        starting: What is said when it is entered.
        say: Hears what takes long while it is entered.
    """

    is_secret: ClassVar[bool] = False
    say: Callable[[str], None] = staticmethod(lambda text: None)
    starting: ClassVar[str] = "joining the Ray cluster"

    def __init__(
        self,
        spec: ClusterSpec,
        resources: ResourcesSpec,
        study_path: FilePath,
        *,
        private_path: Path | None = None,
        lock: LogPath | None = None,
    ) -> None:
        self.private_path, self.lock = private_path, lock
        self.spec = spec
        self.resources = resources
        self.study_path = study_path
        self._connected_here = False
        self._is_over = threading.Event()
        self._beginning: Future[None] | None = None
        self._has_left = threading.Event()

    @staticmethod  # noqa: B027
    def refuse_early(spec: ClusterSpec, resources: ResourcesSpec) -> None:
        """Refuse what is known to be impossible before anything is connected or written.

        By default nothing is known before connecting. A target that ignores keys of the section
        refuses them here.

        Raises:
            ResourceError: With what is there and what was asked for.
        """

    @staticmethod
    def slots_early(spec: ClusterSpec, resources: ResourcesSpec) -> int | None:
        """Return how many trials run at once, or None where that is not known before connecting."""
        return None

    @abstractmethod
    def connect(self) -> None:
        """Start or join Ray.

        Raises:
            ResourceError: It cannot be reached.
        """

    def begin(self, num_trials: int | None = None) -> None:  # noqa: B027
        """Connect in the background, if that starts processes; entering waits for it.

        The study may have no directory yet. By default nothing is begun.

        Args:
            num_trials: How many trials there are at most, if that is no secret.
        """

    def _begin(self) -> None:
        if not ray.is_initialized():
            self._prepare()
            self._beginning = Future()
            # What Ray starts ends with the thread that has started it.
            threading.Thread(target=self._connect_behind, name="dpsweep-ray", daemon=True).start()

    def _connect_behind(self) -> None:
        assert self._beginning is not None
        try:
            self._connect()
        except BaseException as error:
            self._beginning.set_exception(error)
            return
        self._beginning.set_result(None)
        self._has_left.wait()

    def watch(self, on_lost: Callable[[], None]) -> None:  # noqa: B027
        """Call ``on_lost``, in another thread, when processes end that Ray cannot do without.

        Ray itself ends this process soon after them, without a word. It can be noticed where this
        process has started them; by default nothing is watched.
        """

    @property
    def joined(self) -> str:
        """Words on which cluster was joined, once it was; empty where this process has its own."""
        return ""

    def disconnect(self) -> None:
        """Leave Ray, also where it was only begun; one that was up before keeps running."""
        self._is_over.set()
        if self._beginning is not None:
            wait([self._beginning])
        if self._connected_here:
            with _keeps_sigterm():
                self._leave()
            self._connected_here = False
        self._has_left.set()

    def _leave(self) -> None:
        """Leave the Ray that this target has connected to."""
        leave_ray()

    def _prepare(self) -> None:
        """Say how Ray and Tune behave, before either is started.

        Raises:
            ResourceError: This process was forked from one that has used Ray.
        """
        if any(process != os.getpid() for process in _connected_in):
            raise ResourceError(
                "this process was forked from one that has used Ray",
                because="Ray would wait for ever here: its connections do not live on in a fork",
                fix="start it by spawn: multiprocessing.get_context('spawn')",
            )
        # Tune's own loggers and progress tables are not used; a sweep has its own.
        os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # What an actor raises when it is told to leave is nobody's to take once Tune has ended.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        # A trial that fails reports why, and has no score.
        os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
        os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
        # Tune would write what it knows of all trials every 10 s, the longer the more trials there
        # are. A study goes on by its own journal, so once, as Tune begins, and at its end will do.
        os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "inf")
        # Ray runs workers at nice 15: on a shared machine trials would starve.
        os.environ.setdefault("RAY_worker_niceness", "0")

    def _connect(self) -> None:
        _connected_in.append(os.getpid())
        with _keeps_sigterm():
            self.connect()
        self._connected_here = True

    def __enter__(self) -> ClusterTarget:
        self._prepare()
        if self._beginning is not None:
            self._beginning.result()
        elif self.private_path is not None and ray.is_initialized():
            raise ResourceError(
                "accounting select needs a Ray of its own",
                because="Ray keeps traces of every trial, and one runs in this process already",
                fix="call ray.shutdown() first, or use `dpsweep run`",
            )
        elif not ray.is_initialized():
            self._connect()
        try:
            self.check()
        except BaseException:
            self.disconnect()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disconnect()

    def total(self) -> Mapping[str, float]:
        """Return the cluster's resources (CPU and GPU counts)."""
        return ray.cluster_resources()

    def check(self) -> None:
        """Refuse a request that no node can ever satisfy, and a directory that is not private.

        Raises:
            ResourceError: With what is there and what was asked for.
        """
        if self.private_path is not None:
            refuse_open(self.private_path)  # now that Ray has set modes there
        refuse_impossible(self.resources, living_nodes())

    def slots(self) -> int:
        """Return how many trials fit at once, at least 1."""
        return most_at_once(self.resources, living_nodes())

    def put(self, value: Any) -> Any:
        """Store a value once in the object store; trials receive it by reference."""
        return ray.put(value)

    def on_each_node(self, function: Callable[..., _Result], *arguments: Any) -> dict[str, _Result]:
        """Call a function once on every node; return what it returned, by the node's name.

        The name is that of its host; with part of its id, where several nodes are on one host.

        Args:
            function: Of a module that workers can import.
            arguments: What to call it on; pickled.
        Raises:
            SweepError: See ``map``.
        """
        task = ray.remote(num_cpus=0)(function)
        calls = {
            name: task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(*arguments)
            for name, node in _named([node for node in ray.nodes() if node["Alive"]]).items()
        }
        return {host: _result_of(call) for host, call in calls.items()}

    def map(
        self, function: Callable[[_Job], _Result], jobs: Iterable[_Job], *, num_cpus: float = 1
    ) -> Iterator[_Result]:
        """Call a function on every job, on all nodes at once; yield results as they complete.

        Each call has one thread. Jobs are taken from ``jobs`` as there is room for them, so that
        they may carry data. A call whose process dies is repeated. Leaving the iteration early, by
        an error or an interruption, cancels the calls that have not ended.

        Args:
            function: Of a module that workers can import; repeating a call must do no harm.
            jobs: What to call it on; pickled.
            num_cpus: What one call occupies.
        Raises:
            ResourceError: No node has that many CPUs.
            SweepError: A call failed. An error of ours is raised as it is; of another one only the
                kind is told, because its text may quote records.
        """
        refuse_impossible(ResourcesSpec(cpu=num_cpus), living_nodes())
        options: dict[str, Any] = {"num_cpus": num_cpus}
        if self.resources.cpu >= 2:  # the cluster's own environment gives a process more threads
            threads = worker_environment(ResourcesSpec(cpu=1))
            options["runtime_env"] = {"env_vars": threads}
        task = ray.remote(**options)(function)
        # One call more for each that runs, so that no core waits for its next job.
        room = 2 * max(1, int(self.total().get("CPU", 1) / num_cpus))
        waiting = iter(jobs)
        pending: set[Any] = set()
        try:
            while True:
                pending |= {task.remote(job) for job in islice(waiting, room - len(pending))}
                if not pending:
                    return
                (done,), _ = ray.wait(list(pending), num_returns=1)
                pending.remove(done)
                yield _result_of(done)
        finally:
            for call in pending:
                ray.cancel(call)


@contextmanager
def _keeps_sigterm() -> Iterator[None]:
    """Keep SIGTERM from the processes that Ray starts within this block, and Ray from SIGTERM.

    Schedulers of clusters send it to all processes at once. A raylet that leaves takes the driver
    with it, which then has no time to write down how the study ended. Ray kills its processes when
    they outlive their driver, and at its shutdown. The handler of SIGTERM is given back: that which
    Ray sets as it starts would answer with a dump of its stack, and as it ends it leaves none.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    put_back = _system_handler(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main and callable(handler):  # of Python's own, which has one in the main thread
            signal.signal(signal.SIGTERM, handler)
        else:
            put_back()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _system_handler(number: signal.Signals) -> Callable[[], None]:
    """Return a function that gives a signal the handler that the system has for it now.

    Of any thread: Ray's compiled part sets its own behind Python's back.
    """
    library = ctypes.CDLL(None, use_errno=True)
    action = ctypes.create_string_buffer(512)  # more than a ``struct sigaction`` of any system
    library.sigaction(int(number), None, action)

    def put_back() -> None:
        library.sigaction(int(number), action, None)

    return put_back


def _named(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return nodes by names that tell them apart."""
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    return {
        host if hosts[host] == 1 else f"{host} ({node['NodeID'][:8]})": node
        for node in nodes
        for host in (node["NodeManagerHostname"],)
    }


def _result_of(call: Any) -> Any:
    """Return what a call returned, or raise what it raised."""
    try:
        return ray.get(call)
    except RayTaskError as error:
        if isinstance(error.cause, SweepError):
            raise error.cause from None
        # Not chained: Ray's error has all that the worker's traceback says.
        raise SweepError(f"a worker failed with {type(error.cause).__name__}") from None
    except RayError as error:
        raise SweepError(
            f"a worker was lost: {type(error).__name__}",
            fix="run the same command again; with too little memory, lower cluster.num_cpus",
        ) from error


def living_nodes() -> list[Mapping[str, float]]:
    """Return the resources of each node that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]

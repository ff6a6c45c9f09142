"""A Ray runtime of this process's own on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ray

from dpsweep.cluster.base import ClusterTarget
from dpsweep.cluster.early import local_slots, node_of, refuse_impossible
from dpsweep.cluster.lean import lean_ray
from dpsweep.cluster.private_directory import private_directory
from dpsweep.cluster.token import own_token
from dpsweep.cluster.worker import is_warm, preloading, variables
from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.errors import RayLostError, ResourceError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

_VITAL = {"raylet", "gcs_server"}
_LOOK_S = 0.5


class LocalTarget(ClusterTarget):
    """Starts Ray on this machine and stops it again; never joins a cluster that runs already."""

    is_secret = True
    starting = "starting Ray on this machine"
    _closing = contextlib.ExitStack()  # until it has started one
    _num_trials = 0

    @staticmethod
    def refuse_early(spec: ClusterSpec, resources: ResourcesSpec) -> None:
        """Compare the request with this machine's CPUs and NVIDIA devices."""
        refuse_impossible(resources, [node_of(spec)])

    @staticmethod
    def slots_early(spec: ClusterSpec, resources: ResourcesSpec) -> int:
        """Return how many trials this machine has room for, at least 1."""
        return local_slots(spec, resources)

    def begin(self, num_trials: int | None = None) -> None:
        """Start Ray in the background; a subclass, which may need the study's directory, waits."""
        if type(self) is LocalTarget:
            self._num_trials = num_trials or 0
            self._begin()

    def connect(self) -> None:
        """Start Ray with the spec's number of CPUs and GPUs (default: all of them).

        It answers only to a token of its own, and has no dashboard: who may talk to a Ray may run
        code as its user, and it listens on all interfaces. All that it writes is in a directory
        that nobody else can enter: Ray opens its own to everybody, and follows the links there.
        """
        with contextlib.ExitStack() as stack:
            closed = self.private_path or stack.enter_context(private_directory())
            stack.enter_context(own_token())
            preloaded = preloading(self.resources, is_started=self._is_full)
            with lean_ray(), variables(preloaded), _failure_told():
                ray.init(
                    address="local",
                    num_cpus=self.spec.num_cpus,
                    num_gpus=self.spec.num_gpus,
                    include_dashboard=False,
                    # A folder inside: Ray opens the one that it is given to everybody.
                    _temp_dir=str(closed / "ray"),
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            self._closing = stack.pop_all()
        is_warm.set()

    @property
    def _is_full(self) -> bool:
        """Whether a trial is sure to come for each CPU: Ray starts that many processes at once."""
        slots = min(local_slots(self.spec, self.resources), self._num_trials)
        return slots >= node_of(self.spec)["CPU"]

    def _leave(self) -> None:
        """Stop Ray: it kills its processes as soon as this one has said goodbye to them."""
        node = ray._private.worker._global_node
        if node is not None:
            # It would ask each to end, and wait a second; kept from SIGTERM, they do not hear it.
            node.kill_all_processes = partial(_kill_all, node, node.kill_all_processes)
        super()._leave()
        is_warm.clear()
        self._closing.close()

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Watch the raylet and the GCS that this process has started; see ``ClusterTarget``."""
        if not self._connected_here:
            return

        def wait() -> None:
            while not self._is_over.wait(_LOOK_S):
                dead = {kind for kind, _ in ray._private.worker._global_node.dead_processes()}
                if dead & _VITAL and not self._is_over.wait(_LOOK_S):
                    on_lost()
                    return

        threading.Thread(target=wait, name="dpsweep-ray-watch", daemon=True).start()


@contextlib.contextmanager
def _failure_told() -> Iterator[None]:
    """Say in a line that Ray does not start, whatever it raises.

    Raises:
        RayLostError: It does not.
    """
    try:
        yield
    except Exception as error:
        words = blotted(str(error)).strip().partition("\n")[0]
        if "AF_UNIX path" in words:
            raise ResourceError(
                "Ray cannot be started on this machine",
                because=f"the path of its folder is too long ({words[:200]})",
                fix="unset RAY_TMPDIR, or let it name a folder with a shorter path",
            ) from error
        raise RayLostError(
            f"Ray cannot be started on this machine ({type(error).__name__}: {words[:200]})",
            because="a process of its was ended, or this machine is too busy or too full",
            fix="run the same command again; `dpsweep doctor` tells about this machine",
        ) from error


def _kill_all(node: Any, go_on: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """Kill Ray's processes and all that come from them.

    Trials could outlive their raylet by a second, its agents by minutes. One that starts meanwhile
    is not seen, and ends by itself when its raylet has.
    """
    processes = [process for _, process in node.live_processes()]
    below = _descendants_of({process.pid for process in processes})
    for process in processes:
        process.kill()
    for pid in below:
        with contextlib.suppress(OSError):  # it has ended, or runs as another user
            os.kill(pid, signal.SIGKILL)
    go_on(*arguments, **options)


def _descendants_of(ancestors: set[int]) -> list[int]:
    """Return the ids of all descendants of some processes.

    Where there is no /proc, none is seen.
    """
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            stat = (entry / "stat").read_bytes()  # a name may be cut within a letter
            parents[int(entry.name)] = int(stat.rpartition(b")")[2].split()[1])
    below: list[int] = []
    while ancestors:
        ancestors = {pid for pid, parent in parents.items() if parent in ancestors}
        ancestors.difference_update(below)  # where an id was used again meanwhile
        below += ancestors
    return below

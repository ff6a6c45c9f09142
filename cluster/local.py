"""A Ray runtime of this process's own on this machine."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import ray

from dpsweep.cluster.base import ClusterTarget, worker_environment
from dpsweep.cluster.early import local_slots, node_of, refuse_impossible
from dpsweep.cluster.token import own_token
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

_VITAL = {"raylet", "gcs_server"}
_LOOK_S = 0.5


class LocalTarget(ClusterTarget):
    """Starts Ray on this machine and stops it again; never joins a cluster that runs already."""

    is_secret = True
    starting = "starting Ray on this machine"
    _closing = contextlib.ExitStack()  # until it has started one

    @staticmethod
    def refuse_early(spec: ClusterSpec, resources: ResourcesSpec) -> None:
        """Compare the request with this machine's CPUs and NVIDIA devices."""
        refuse_impossible(resources, [node_of(spec)])

    @staticmethod
    def slots_early(spec: ClusterSpec, resources: ResourcesSpec) -> int:
        """Return how many trials this machine has room for, at least 1."""
        return local_slots(spec, resources)

    def connect(self) -> None:
        """Start Ray with the spec's number of CPUs and GPUs (default: all of them).

        It answers only to a token of its own, and has no dashboard: who may talk to a Ray may run
        code as its user, and it listens on all interfaces.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_token())
            ray.init(
                address="local",
                num_cpus=self.spec.num_cpus,
                num_gpus=self.spec.num_gpus,
                include_dashboard=False,
                # A folder inside: Ray opens the one that it is given to everybody.
                _temp_dir=None if self.private_path is None else str(self.private_path / "ray"),
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": worker_environment(self.resources)},
            )
            self._closing = stack.pop_all()

    def disconnect(self) -> None:
        """Stop Ray."""
        node = ray._private.worker._global_node
        if self._connected_here and node is not None:
            # Ray waits a second for each of its processes, which do not hear SIGTERM.
            for kind, process in node.live_processes():
                if kind not in _VITAL:
                    process.kill()
        super().disconnect()
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

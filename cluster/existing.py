"""A Ray cluster that runs already, reached by its address."""

from __future__ import annotations

import logging
import socket
import tempfile
import uuid
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dpsweep.cluster.base import ClusterTarget, worker_environment
from dpsweep.cluster.package import build_wheel
from dpsweep.errors import ResourceError

CONNECT_S = 10.0


def _silence(address: str, error: Exception) -> ResourceError:
    return ResourceError(
        f"no Ray cluster answers at cluster.address={address!r}",
        because=str(error).strip().splitlines()[0],
        fix="start one (`ray start --head`), or use `cluster: {target: local}`",
    )


def _refuse_silence(address: str) -> None:
    """Try the port first: Ray itself keeps trying for minutes where nobody listens."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if not port:
        return  # "auto": Ray finds the address
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise _silence(address, error) from error


def _can_see(path: str) -> bool:
    return Path(path).exists()


class ExistingTarget(ClusterTarget):
    """Joins a running cluster and ships this package to its nodes as a wheel.

    The study's directory (ledger, checkpoints, journal) must be on storage that all nodes share:
    a charge that only one node can see would be lost with it. This is checked on each node.
    """

    def connect(self) -> None:
        """Join the cluster at ``cluster.address``.

        Raises:
            ResourceError: Nothing answers there, or a node does not share the study's directory.
        """
        assert self.spec.address is not None  # the spec requires it for this target
        _refuse_silence(self.spec.address)
        with tempfile.TemporaryDirectory() as directory:
            wheel = build_wheel(Path(directory))
            try:
                ray.init(
                    address=self.spec.address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={
                        "py_modules": [str(wheel)],
                        "env_vars": worker_environment(self.resources),
                    },
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _silence(self.spec.address, error) from error

    def check(self) -> None:
        """Check the request, and that every node sees the study's directory."""
        super().check()
        witness = self.study_path / f".seen-{uuid.uuid4().hex}"
        witness.touch()
        probe = ray.remote(num_cpus=0)(_can_see)
        try:
            answers = {
                node["NodeManagerHostname"]: probe.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote(str(witness))
                for node in ray.nodes()
                if node["Alive"]
            }
            blind = sorted(host for host, answer in answers.items() if not ray.get(answer))
        finally:
            witness.unlink()
        if blind:
            raise ResourceError(
                f"the study directory {self.study_path} is not shared with: {', '.join(blind)}",
                because="a privacy charge must outlive the node that makes it",
                fix="set storage.path to a directory that all nodes mount",
            )

"""A Ray cluster that runs already, reached by its address."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import ray

from dpsweep.cluster.base import ClusterTarget, worker_environment
from dpsweep.cluster.package import build_wheel
from dpsweep.foundation.durable import FileLock
from dpsweep.foundation.errors import ResourceError
from dpsweep.foundation.words import counted

CONNECT_S = 10.0


def _silence(address: str, error: Exception) -> ResourceError:
    return ResourceError(
        f"no Ray cluster answers at cluster.address={address!r}",
        because=str(error).strip().splitlines()[0],
        fix="start one (`ray start --head`), or use `cluster: {target: local}`",
    )


def _refusal(address: str, error: Exception) -> ResourceError:
    """Return the error for a cluster that cannot be joined; one that wants a token says so."""
    text = str(error)
    if not any(word in text.lower() for word in ("token", "authentic")):
        return _silence(address, error)
    return ResourceError(
        f"the Ray cluster at cluster.address={address!r} asks for a token",
        because=text.strip().splitlines()[0],
        fix="set RAY_AUTH_MODE=token here, with the token of that cluster (RAY_AUTH_TOKEN, or "
        "RAY_AUTH_TOKEN_PATH)",
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


def sharing_problem(path: str) -> str:
    """Return what is wrong with a file that the driver has locked, as this node sees it."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return "not shared"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return ""
    finally:
        os.close(handle)
    return "not locked"


class ExistingTarget(ClusterTarget):
    """Joins a running cluster and ships this package to its nodes as a wheel.

    The study's directory (ledger, checkpoints, journal) must be on storage that all nodes share:
    a charge that only one node can see would be lost with it. So must locks on its files, as two
    processes must not charge one trial. Both are checked on each node.
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
                raise _refusal(self.spec.address, error) from error

    @property
    def joined(self) -> str:
        """Words on the cluster: ``auto`` is whichever Ray finds, and one of this process stays."""
        total = self.total()
        nodes = sum(node["Alive"] for node in ray.nodes())
        return (
            f"joined the Ray cluster at {ray.get_runtime_context().gcs_address}: "
            f"{counted(nodes, 'node')}, {counted(total.get('CPU', 0.0), 'CPU')} and "
            f"{counted(total.get('GPU', 0.0), 'GPU')} in all"
        )

    def check(self) -> None:
        """Check the request, and that every node sees the study's directory and its locks."""
        super().check()
        witness = self.study_path / f".seen-{uuid.uuid4().hex}"
        lock = FileLock(witness, holder="the driver")
        try:
            problems = self.on_each_node(sharing_problem, str(witness))
        finally:
            lock.release()
            witness.unlink()
        refuse_unshared(self.study_path, problems)


def refuse_unshared(study_path: Path, found: Mapping[str, str]) -> None:
    """Refuse nodes on which a charge could get lost, or be made twice.

    Args:
        study_path: The study's directory.
        found: Host name -> what ``sharing_problem`` says there.
    Raises:
        ResourceError: A node does not see the directory, or not that a file in it is locked.
    """
    blind = sorted(host for host, problem in found.items() if problem == "not shared")
    if blind:
        raise ResourceError(
            f"the study directory {study_path} is not shared with: {', '.join(blind)}",
            because="a privacy charge must outlive the node that makes it",
            fix="set storage.path to a directory that all nodes mount",
        )
    deaf = sorted(host for host, problem in found.items() if problem == "not locked")
    if deaf:
        raise ResourceError(
            f"a lock on a file in the study directory {study_path} does not hold on: "
            f"{', '.join(deaf)}",
            because="two processes could charge one trial, and run more than its ledger shows",
            fix="mount it with locks that hold between nodes (on NFS without local_lock, on Lustre "
            "with flock), or use another storage.path",
        )

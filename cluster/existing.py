"""A Ray cluster that runs already, reached by its address."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import ray
from ray.autoscaler.sdk import request_resources

from dpsweep.cluster.base import ClusterTarget, living_nodes
from dpsweep.cluster.early import refuse_impossible
from dpsweep.cluster.package import write_package
from dpsweep.cluster.running_here import START_ONE, address_here
from dpsweep.cluster.worker import worker_environment
from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.bucket_path import BucketPath, probe
from dpsweep.foundation.database_path import DatabasePath, LogPath
from dpsweep.foundation.errors import ResourceError, SweepError
from dpsweep.foundation.locks import FileLock
from dpsweep.foundation.postgres.sessions import holder_of, refuse_unwritable
from dpsweep.foundation.words import counted

CONNECT_S = 10.0
_ASK_S = 2.0


def _silence(address: str, error: Exception) -> ResourceError:
    return ResourceError(
        f"no Ray cluster answers at cluster.address={address!r}",
        because=blotted(str(error)).strip().splitlines()[0],
        fix=START_ONE,
    )


def _refusal(address: str, error: Exception) -> ResourceError:
    """Return the error for a cluster that cannot be joined; one that wants a token says so."""
    text = blotted(str(error))
    if text.startswith("Version mismatch"):
        return ResourceError(
            f"the Ray cluster at cluster.address={address!r} runs another Ray or Python",
            because=" ".join(text.split()),
            fix="use the image or the environment of its nodes here, or this one there",
        )
    # A port that has answered as Ray's does (``_refuse_silence``) lets nobody in without a token;
    # Ray 2.60 says why in its log alone.
    if any(word in text.lower() for word in ("token", "authentic")):
        problem, doubt = "asks for a token", ""
    elif ":" in address and text.startswith("Failed to connect"):
        problem, doubt = "lets nobody in", " (its port answers; it may ask for a token)"
    else:
        return _silence(address, error)
    return ResourceError(
        f"the Ray cluster at cluster.address={address!r} {problem}",
        because=text.strip().splitlines()[0] + doubt,
        fix="set RAY_AUTH_MODE=token here, with the token of that cluster (RAY_AUTH_TOKEN, or "
        "RAY_AUTH_TOKEN_PATH)",
    )


def _refuse_silence(address: str) -> None:
    """Try the port first: Ray itself keeps trying for minutes where nobody listens."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if not port:
        return  # "auto": Ray finds the address
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                _refuse_other_server(connection)
    except (OSError, ValueError) as error:
        raise _silence(address, error) from error


# How a client of HTTP/2, and so of gRPC, begins: with this, and settings of which there are none.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS, _HEADER = 4, 9


def _refuse_other_server(connection: socket.socket) -> None:
    """Refuse a server that does not begin as gRPC does: Ray would wait for it for minutes.

    Raises:
        OSError: It says something else, or nothing in time.
    """
    connection.settimeout(CONNECT_S / 2)
    connection.sendall(_HELLO)
    answer = b""
    while len(answer) < _HEADER:
        more = connection.recv(_HEADER - len(answer))
        if not more:
            break
        answer += more
    if len(answer) < _HEADER or answer[3] != _SETTINGS:
        raise OSError("what listens there is no Ray")


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
    """Joins a running cluster and ships this package to its nodes.

    The study's directory (ledger, checkpoints, journal) must be on storage that all nodes share:
    a charge that only one node can see would be lost with it. So must locks on its files, as two
    processes must not charge one trial. Both are checked on each node.
    """

    def connect(self) -> None:
        """Join the cluster at ``cluster.address``.

        Raises:
            ResourceError: Nothing answers there, a node does not share the study's directory, or no
                one cluster is meant by ``auto``.
        """
        assert self.spec.address is not None  # the spec requires it for this target
        address = address_here(self.spec.address)
        _refuse_silence(address)
        with tempfile.TemporaryDirectory() as directory:
            package = write_package(Path(directory))
            try:
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={
                        "py_modules": [str(package)],
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

    def _await_room(self) -> None:
        """Give an autoscaler ``cluster.wait_minutes`` to bring nodes with room for each share.

        Fewer than ``cluster.wait_nodes`` have to do then, if each share has a node.
        """
        shares = self.resources.shares

        def is_room() -> bool:
            nodes = living_nodes()
            try:
                refuse_impossible(self.resources, nodes)
            except ResourceError as error:
                missing.append(f"{error.message} ({error.because})")
                return False
            able = sum(any(share.fits(node) for share in shares.values()) for node in nodes)
            missing.append(f"{able} of {counted(self.spec.wait_nodes, 'node')} are there")
            return able >= self.spec.wait_nodes

        missing: list[str] = []
        if is_room() or not self.spec.wait_minutes:
            return
        minutes = counted(self.spec.wait_minutes, "minute")
        self.say(f"waiting up to {minutes} for an autoscaler: {missing[-1]}")
        bundles = [{"CPU": s.cpu, "GPU": s.gpu} for s in shares.values()]
        request_resources(bundles=bundles)  # an autoscaler starts nodes for what is asked for
        try:
            wait_for(is_room, seconds=60 * self.spec.wait_minutes, every_s=_ASK_S)
        finally:
            request_resources(bundles=[])

    def check(self) -> None:
        """Check the request, and that every node sees the study's directory and its locks."""
        self._await_room()
        super().check()
        if isinstance(self.study_path, BucketPath):
            refuse_unheard(self.lock, self.on_each_node(database_problem, self.lock))
            refuse_unread(self.study_path, self.on_each_node(bucket_problem, self.study_path))
            return
        witness = self.study_path / f".seen-{uuid.uuid4().hex}"
        lock = FileLock(witness, holder="the driver")
        try:
            problems = self.on_each_node(sharing_problem, str(witness))
            in_database = isinstance(self.lock, DatabasePath)
            if in_database:
                unheard = self.on_each_node(database_problem, self.lock)
                refuse_unheard(self.lock, unheard)
        finally:
            lock.release()
            witness.unlink()
        refuse_unshared(self.study_path, problems, needs_locks=not in_database)


def bucket_problem(folder: BucketPath) -> str:
    """Return why this node cannot keep checkpoints in the study's bucket; empty if it can."""
    try:
        probe(folder)
    except SweepError as error:
        return error.because or error.message
    return ""


def refuse_unread(folder: BucketPath, found: Mapping[str, str]) -> None:
    """Refuse nodes that cannot keep checkpoints in the study's bucket.

    Args:
        folder: The study's, there.
        found: Host name -> what ``bucket_problem`` says there.
    Raises:
        ResourceError: A node cannot.
    """
    fix = (
        "give every node a role or credentials, and AWS_ENDPOINT_URL where the store is another, "
        "in the environment that Ray was started in there"
    )
    _refuse_deaf(found, f"cannot write to {folder}", fix)


def database_problem(lock: DatabasePath) -> str:
    """Return why this node cannot charge trials to the study's database; empty if it can."""
    try:
        refuse_unwritable(lock.server)
        return "" if holder_of(lock) else "does not see that the driver holds the study's lock"
    except SweepError as error:
        return error.message


def refuse_unheard(lock: LogPath | None, found: Mapping[str, str]) -> None:
    """Refuse nodes that cannot reach the study's database.

    Args:
        lock: The study's lock, there.
        found: Host name -> what ``database_problem`` says there.
    Raises:
        ResourceError: A node cannot.
    """
    fix = (
        "let every node reach it, with PGPASSWORD or ~/.pgpass in the environment that Ray was "
        "started in there"
    )
    _refuse_deaf(found, f"cannot be charged to {lock}", fix)


def _refuse_deaf(found: Mapping[str, str], what: str, fix: str) -> None:
    """Refuse nodes that have said why they cannot do what trials need."""
    deaf = {host: problem for host, problem in sorted(found.items()) if problem}
    if deaf:
        host, problem = next(iter(deaf.items()))
        raise ResourceError(
            f"trials on {', '.join(deaf)} {what}", because=f"on {host}, {problem}", fix=fix
        )


def wait_for(condition: Callable[[], bool], *, seconds: float, every_s: float) -> bool:
    """Ask again and again until a condition holds; return False if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(every_s, left))
    return True


def refuse_unshared(
    study_path: Path, found: Mapping[str, str], *, needs_locks: bool = True
) -> None:
    """Refuse nodes on which a charge could get lost, or be made twice.

    Args:
        study_path: The study's directory.
        found: Host name -> what ``sharing_problem`` says there.
        needs_locks: Whether ledgers are files there.
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
    if deaf and needs_locks:
        raise ResourceError(
            f"a lock on a file in the study directory {study_path} does not hold on: "
            f"{', '.join(deaf)}",
            because="two processes could charge one trial, and run more than its ledger shows",
            fix="mount it with locks that hold between nodes (on NFS without local_lock, on Lustre "
            "with flock), use another storage.path, or keep ledgers in storage.database",
        )

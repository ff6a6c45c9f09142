"""Environments of processes: of those that trials run in, and for a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dpsweep.spec.cluster import ResourcesSpec

#: Threads of one process; directory of the driver's ``dpsweep.cluster``.
THREADS, HOME = "DPSWEEP_WORKER_THREADS", "DPSWEEP_WORKER_HOME"
#: Ray whose private parts are known to be what ``cluster.lean`` and ``running.nodes.warm`` rely on;
#: with another one they change nothing.
TRIED = "2.60."
#: What numerical libraries read when they are loaded.
THREAD_NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: Set while a Ray runs whose processes are warm: actors may run in any of them.
is_warm = threading.Event()
_PRELOADED = "dpsweep.running.nodes.warm"


def worker_environment(resources: ResourcesSpec) -> dict[str, str]:
    """Return the environment of trial processes: one thread per whole CPU of a trial.

    OpenMP workers spin at barriers; two trials with two threads each on two cores are slower than
    four trials with one.
    """
    threads = str(max(1, int(resources.cpu)))
    names = (*THREAD_NAMES, THREADS)
    return {name: threads for name in names} | {"TOKENIZERS_PARALLELISM": "false"}


def preloading(resources: ResourcesSpec, *, is_started: bool) -> dict[str, str]:
    """Return the environment for a Ray whose processes load what trials need, beforehand.

    Args:
        resources: Of a trial.
        is_started: Whether Ray starts a process for each of its CPUs beforehand.
    """
    return {
        THREADS: worker_environment(resources)[THREADS],
        HOME: str(Path(__file__).parent),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_preload_python_modules": _PRELOADED,
        "RAY_prestart_worker_first_driver": str(int(is_started)),
        # Ray ends idle processes after a second, those that were started beforehand among them.
        "RAY_idle_worker_killing_time_threshold_ms": "60000",
        # A raylet that misses its own object store by a hair, as it may on busy cores, would wait a
        # second for the next of ten tries.
        "RAY_raylet_client_connect_timeout_milliseconds": "50",
        "RAY_raylet_client_num_connect_attempts": "200",
        # What stands by for an agent (lean.py) ends by its input, the other end of which a raylet
        # holds only with this.
        "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    }


@contextmanager
def variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: none) for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

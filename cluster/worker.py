"""The processes of trials: their environment, and what they load before they are asked.

A local Ray starts a process for each slot as soon as it is up, while the driver still reads and
plans, and each of them imports this module (Ray's setting ``preload_python_modules``). Nothing
depends on that: a process that could not import it loads the same with its first trial, later.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from dpsweep.spec.cluster import ResourcesSpec

_THREADS, _HOME = "DPSWEEP_WORKER_THREADS", "DPSWEEP_WORKER_HOME"
_THREAD_NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_BY_OTHERS = ("ray.tune", "torch")
_OWN = "dpsweep.trainables.execution.actor"


def worker_environment(resources: ResourcesSpec) -> dict[str, str]:
    """Return the environment of trial processes: one thread per whole CPU of a trial.

    OpenMP workers spin at barriers; two trials with two threads each on two cores are slower than
    four trials with one.
    """
    threads = str(max(1, int(resources.cpu)))
    names = (*_THREAD_NAMES, _THREADS)
    return {name: threads for name in names} | {"TOKENIZERS_PARALLELISM": "false"}


def preloading(resources: ResourcesSpec, *, is_started: bool) -> dict[str, str]:
    """Return the environment for a Ray whose processes load this module.

    Args:
        resources: Of a trial.
        is_started: Whether Ray starts a process for each of its CPUs beforehand.
    """
    return {
        _THREADS: worker_environment(resources)[_THREADS],
        _HOME: str(Path(__file__).parent),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_preload_python_modules": __name__,
        "RAY_prestart_worker_first_driver": str(int(is_started)),
        # Ray ends idle processes after a second, those that were started beforehand among them.
        "RAY_idle_worker_killing_time_threshold_ms": "60000",
    }


def load() -> None:
    """Set the number of threads, then import what every trial needs.

    The driver may run another copy of this package than the installed one; where that is, this
    process learns with its first trial. Then nothing of the installed copy stays loaded.

    Raises:
        ImportError: Nothing was gained; Ray forgives this error alone.
    """
    for name in _THREAD_NAMES:
        os.environ[name] = os.environ[_THREADS]
    try:
        for name in _BY_OTHERS:
            importlib.import_module(name)
        if os.environ[_HOME] == str(Path(__file__).parent):
            importlib.import_module(_OWN)
            return
    except Exception as error:
        raise ImportError("not loaded before the first trial") from error
    for name in [name for name in sys.modules if name.partition(".")[0] == "dpsweep"]:
        del sys.modules[name]
    raise ImportError("the driver runs another copy of dpsweep")


if _HOME in os.environ:
    load()

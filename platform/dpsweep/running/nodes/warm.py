"""Trial processes load, by an import of this module, what they need before they are asked.

A local Ray starts a process for each slot as soon as it is up, while the driver still reads and
plans, and each of them imports this module (Ray's setting ``preload_python_modules``). Nothing
depends on that: a process that could not import it loads the same with its first trial, later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsweep import cluster
from dpsweep.cluster.worker import HOME, THREAD_NAMES, THREADS, TRIED
from dpsweep.foundation.process.deferring import defer, parts_alone
from dpsweep.foundation.process.garbage import loading
from dpsweep.foundation.process.packages import scan_once


def load() -> None:
    """Set the number of threads, then import what every trial needs.

    The driver may run another copy of this package than the installed one; where that is, this
    process learns with its first trial. Then nothing of the installed copy stays loaded.

    Raises:
        ImportError: Nothing was gained; Ray forgives this error alone.
    """
    for name in THREAD_NAMES:
        os.environ[name] = os.environ[THREADS]
    if os.environ[HOME] == str(Path(cluster.__file__).parent):
        scan_once()
        try:
            with loading(), _only_what_trials_use():
                import dpsweep.trainables.execution.actor  # ray.tune
                import dpsweep.trainables.execution.execution  # noqa: F401  # torch
        except Exception as error:
            raise ImportError("not loaded before the first trial") from error
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "dpsweep"]:
        del sys.modules[name]
    raise ImportError("the driver runs another copy of dpsweep")


@contextmanager
def _only_what_trials_use() -> Iterator[None]:
    """Let Tune's loop, Ray's data sets and pandas be loaded by those who use them.

    The base class of a trial needs a few modules of Tune; the package imports all of this, too.
    """
    if getattr(sys.modules.get("ray"), "__version__", "").startswith(TRIED):
        for name in ("pandas", "ray.data", "ray.tune"):
            defer(name)
    with parts_alone("ray.tune"):
        yield


if HOME in os.environ:
    load()

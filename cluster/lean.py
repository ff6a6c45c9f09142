"""A Ray without the processes that a sweep on one machine has no use for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dpsweep.foundation.process.replacing import replaced

#: Methods of Ray's ``Node``, and what they would start. ``ray.init`` has no switch for them.
_UNUSED = (
    "start_api_server",  # the dashboard's server, also without a dashboard; Ray waits for it
    "start_monitor",  # the autoscaler
    "start_log_monitor",  # sends the output of workers to the driver, which wants none
)


@contextmanager
def lean_ray() -> Iterator[None]:
    """Let a Ray that is started meanwhile have a GCS, a raylet with its agents, and workers alone.

    Three interpreters fewer: they take three fifths of the time that ``ray.init`` needs, and most
    of the time that it takes to end. A version of Ray that names these methods otherwise starts
    them all.
    """
    from ray._private.node import Node

    with replaced(Node, dict.fromkeys(_UNUSED, lambda *arguments, **options: None)):
        yield

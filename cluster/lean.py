"""A Ray without the processes that a sweep on one machine has no use for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def replaced(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Give something other attributes for a time; those that it does not have are left out."""
    before = {name: getattr(owner, name) for name in values if hasattr(owner, name)}
    for name in before:
        setattr(owner, name, values[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)

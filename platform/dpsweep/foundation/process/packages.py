"""Entry points of installed packages, read once for a process."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any


def scan_once() -> None:
    """Let this process read the entry points of installed packages once, from now on.

    ``importlib.metadata`` reads those of all packages each time it is asked for those of one group,
    12 ms of CPU where two hundred are installed, and the driver of a launch asks some twenty times:
    pydantic, MLflow, and these modules. What is installed while the process runs is not seen, so
    this is for processes that belong to us; where the search path has changed, it is read anew.
    """
    read = metadata.entry_points
    read_before: dict[tuple[str, ...], Any] = {}

    def entry_points(**chosen: Any) -> Any:
        path = tuple(map(str, sys.path))
        points = read_before.get(path)
        if points is None:
            read_before.clear()
            points = read_before[path] = read()
        return points.select(**chosen)

    metadata.entry_points = entry_points

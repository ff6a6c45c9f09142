"""Leaving Ray while other threads of this process go on."""

from __future__ import annotations

from typing import Any

import ray


class _CoreWorker:
    """Ray's core worker, which nobody can ask any more once it shuts down.

    A reference to an object that is cleared up by another thread meanwhile would ask it to count
    one less, and Ray ends the process then, with status 1 and a line in its own log. Whoever asks
    finds no such method, which Ray passes over.

    Args:
        own: Ray's.
    """

    def __init__(self, own: Any) -> None:
        self._own, self._is_ending = own, False

    def __getattr__(self, name: str) -> Any:
        if self._is_ending:
            raise AttributeError(name)
        return getattr(self._own, name)

    def shutdown_driver(self) -> None:
        """Shut down; Ray calls this without holding the interpreter's lock for half a second."""
        self._is_ending = True
        self._own.shutdown_driver()


def leave_ray() -> None:
    """Disconnect from Ray, and end it if this process has started it (``ray.shutdown``)."""
    worker = ray._private.worker.global_worker
    if hasattr(worker, "core_worker"):
        worker.core_worker = _CoreWorker(worker.core_worker)
    ray.shutdown()

"""Trial policies: pure decisions from reports, and their adapter to Ray Tune."""

from __future__ import annotations

from dpsweep.registry import Registry

POLICIES = Registry(
    "scheduler",
    {"fifo": "dpsweep.schedulers.fifo:FifoPolicy"},
    group="dpsweep.schedulers",
)

__all__ = ["POLICIES"]

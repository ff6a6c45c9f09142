"""Where a sweep runs: cluster targets behind one interface."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry

TARGETS = Registry(
    "cluster target",
    {
        "local": "dpsweep.cluster.local:LocalTarget",
        "ray": "dpsweep.cluster.existing:ExistingTarget",
    },
    group="dpsweep.cluster",
)

__all__ = ["TARGETS"]

"""Cluster targets: where a sweep runs, behind one interface."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry
from dpsweep.spec.study import TARGET_GROUP

TARGETS = Registry(
    "cluster target",
    {
        "local": "dpsweep.cluster.local:LocalTarget",
        "ray": "dpsweep.cluster.existing:ExistingTarget",
    },
    group=TARGET_GROUP,
)

__all__ = ["TARGETS"]

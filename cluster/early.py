"""Early answers of cluster targets: how many trials run at once, without loading Ray for ours."""

from __future__ import annotations

import os
from pathlib import Path

from dpsweep.cluster import TARGETS
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec


def node_of(spec: ClusterSpec) -> dict[str, float]:
    """Return the CPUs and NVIDIA devices of this machine that the spec leaves to Ray."""
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return {
        "CPU": spec.num_cpus or len(os.sched_getaffinity(0)),
        "GPU": devices if spec.num_gpus is None else spec.num_gpus,
    }


def local_slots(spec: ClusterSpec, resources: ResourcesSpec) -> int:
    """Return how many trials this machine has room for, at least 1."""
    node = node_of(spec)
    fits = [node["CPU"] / resources.cpu]
    if resources.gpu:
        fits.append(node["GPU"] / resources.gpu)
    return max(1, int(min(fits) + 1e-9))


def slots_early(spec: ClusterSpec, resources: ResourcesSpec) -> int | None:
    """Return how many trials run at once, None where that is not known before connecting.

    The target of another package is asked itself, which loads whatever it loads.
    """
    if spec.target == "local":
        return local_slots(spec, resources)
    if spec.target not in TARGETS.outside():
        return None
    slots: int | None = TARGETS[spec.target].slots_early(spec, resources)
    return slots

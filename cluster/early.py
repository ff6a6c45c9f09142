"""Early answers of cluster targets: how many trials run at once, without loading Ray for ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    return most_at_once(resources, node_of(spec))


def most_at_once(resources: ResourcesSpec, total: Mapping[str, float]) -> int:
    """Return how many trials run at once on these CPUs and GPUs, at least 1.

    Of several shares, the one counts of which the most fit: a trial that asks for more waits for
    its turn while others run.
    """
    return max(1, *(int(share.fits(total) + 1e-9) for share in resources.shares.values()))


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

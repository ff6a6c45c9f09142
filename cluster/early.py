"""Early answers of cluster targets: how many trials run at once, if any, without loading Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from dpsweep.cluster import TARGETS
from dpsweep.foundation.errors import ResourceError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec, Share


def node_of(spec: ClusterSpec) -> dict[str, float]:
    """Return the CPUs and NVIDIA devices of this machine that the spec leaves to Ray."""
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:  # Ray counts by it, too
        names = takewhile(lambda name: name.strip() not in ("", "-1"), visible.split(","))
        devices = min(devices, len(list(names)))
    return {
        "CPU": spec.num_cpus or len(os.sched_getaffinity(0)),
        "GPU": devices if spec.num_gpus is None else spec.num_gpus,
    }


def local_slots(spec: ClusterSpec, resources: ResourcesSpec) -> int:
    """Return how many trials this machine has room for, at least 1."""
    return most_at_once(resources, [node_of(spec)])


def most_at_once(resources: ResourcesSpec, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many trials run at once on nodes of these CPUs and GPUs, at least 1.

    Of several shares, the one counts of which the most fit: a trial that asks for more waits for
    its turn while others run.
    """
    shares = resources.shares.values()
    return max(1, *(sum(share.fits(node) for node in nodes) for share in shares))


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


def refuse_early(spec: ClusterSpec, resources: ResourcesSpec) -> None:
    """Refuse a trial that this machine cannot run, if that is where it is to run.

    A spec with a section for another place (``cluster.slurm``, ``kuberay``, ``vm``) may be checked
    here and run there. Of the target of another package ``slots_early`` is true.

    Raises:
        ResourceError: With what is there and what was asked for.
    """
    if spec.target == "local":
        if not (spec.slurm or spec.kuberay or spec.vm):
            refuse_impossible(resources, [node_of(spec)])
    elif spec.target in TARGETS.outside():
        TARGETS[spec.target].refuse_early(spec, resources)


def refuse_impossible(resources: ResourcesSpec, nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse a trial that fits on none of the nodes, each given as its CPU and GPU counts.

    Raises:
        ResourceError: With the largest node and what was asked for, of the first share that does
            not fit.
    """
    for place, share in resources.shares.items():
        _refuse_share(place, share, nodes)


def _refuse_share(place: str, share: Share, nodes: Sequence[Mapping[str, float]]) -> None:
    wanted = {"CPU": share.cpu, "GPU": share.gpu}
    if any(all(node.get(kind, 0.0) >= asked for kind, asked in wanted.items()) for node in nodes):
        return
    largest = {kind: max((node.get(kind, 0.0) for node in nodes), default=0.0) for kind in wanted}
    raise ResourceError(
        f"no node can run a trial that asks for {place}.cpu={share.cpu:g} and "
        f"{place}.gpu={share.gpu:g}",
        because=f"the largest node has {largest['CPU']:g} CPUs and {largest['GPU']:g} GPUs",
        fix=f"lower {place}.cpu or {place}.gpu, or use a cluster that has them",
    )

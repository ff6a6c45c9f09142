"""Joining the cluster of a launch: it answers, and its nodes can run the trials."""

from __future__ import annotations

from dpsweep.cluster.base import ClusterTarget
from dpsweep.planning.preflight import Preflight
from dpsweep.running.nodes.cluster import LaunchCluster
from dpsweep.running.nodes.own_code import check_own_code
from dpsweep.running.nodes.software import check_software
from dpsweep.study.study import Observer


def join_cluster(cluster: LaunchCluster, checked: Preflight, observer: Observer) -> ClusterTarget:
    """Join the cluster of a launch, and refuse nodes that cannot run its trials.

    Args:
        cluster: The launch's; whoever has made it leaves it.
        checked: The checked spec.
        observer: Who watches.
    Raises:
        ResourceError: It cannot be reached, or a node has other software or no room.
    """
    observer.on_stage(cluster.starting)
    target = cluster.join(observer.on_message)
    if target.joined:
        observer.on_message(target.joined)
    check_software(checked, target, observer)
    check_own_code(checked, target)
    return target

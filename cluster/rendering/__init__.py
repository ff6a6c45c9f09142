"""Renderings: what a person needs to start a sweep on a cluster, and the commands for it."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry

#: Targets of ``dpsweep cluster``. Loads neither Ray nor torch.
RENDERINGS = Registry(
    "kind of cluster",
    {
        "local": "dpsweep.cluster.rendering.joined:LocalRendering",
        "ray": "dpsweep.cluster.rendering.joined:RayRendering",
        "kuberay": "dpsweep.cluster.rendering.kuberay:KubeRayRendering",
        "slurm": "dpsweep.cluster.rendering.slurm:SlurmRendering",
        "vm": "dpsweep.cluster.rendering.vm:VmRendering",
    },
    group="dpsweep.renderings",
    needs=("render", "files", "submit", "status", "logs", "stop"),
)

__all__ = ["RENDERINGS"]

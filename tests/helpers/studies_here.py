"""Whole studies of every accounting mode, run in this process with a stand-in for Ray."""

from __future__ import annotations

from no_cluster import NoCluster, execute_here

from dpsweep import sweep
from dpsweep.results.study import load_sweep
from dpsweep.running.modes import final_run, searching
from dpsweep.running.nodes import cluster
from dpsweep.running.stage import Stage
from dpsweep.spec.study import SweepSpec


def run_here(patch, raw, observer=None):
    """Run a study that is not sealed, and return its results; ``patch`` is ``setattr`` or alike."""
    for module in (searching, final_run):
        patch(module, "prefetch", lambda *arguments, **options: None)
    patch(Stage, "execute", execute_here)
    patch(cluster, "TARGETS", {"local": NoCluster})
    sweep.run_sweep(SweepSpec(**raw), observer=observer)
    return load_sweep(raw["name"], root=raw["storage"]["path"])

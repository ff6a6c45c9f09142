"""A Ray runtime of this process's own on this machine."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import ray

from dpsweep.cluster.base import ClusterTarget, refuse_impossible, worker_environment
from dpsweep.spec import ClusterSpec, ResourcesSpec


class LocalTarget(ClusterTarget):
    """Starts Ray on this machine and stops it again; never joins a cluster that runs already."""

    @staticmethod
    def refuse_early(spec: ClusterSpec, resources: ResourcesSpec) -> None:
        """Compare the request with this machine's CPUs and NVIDIA devices."""
        devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
        node = {
            "CPU": spec.num_cpus or len(os.sched_getaffinity(0)),
            "GPU": devices if spec.num_gpus is None else spec.num_gpus,
        }
        refuse_impossible(resources, [node])

    def connect(self) -> None:
        """Start Ray with the spec's number of CPUs and GPUs (default: all of them)."""
        ray.init(
            address="local",
            num_cpus=self.spec.num_cpus,
            num_gpus=self.spec.num_gpus,
            include_dashboard=False,
            _temp_dir=None if self.private_path is None else str(self.private_path),
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": worker_environment(self.resources)},
        )

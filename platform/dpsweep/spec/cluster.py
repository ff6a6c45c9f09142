"""The cluster and resources sections of a spec: where trials run, and what one occupies there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.registry import installed
from dpsweep.spec.base import (
    AS_WHOLE,
    Count,
    NotNegative,
    Part,
    Positive,
    Text,
    peek_number,
)
from dpsweep.spec.installed import known_name, name_schema
from dpsweep.spec.launching import KubeRaySpec, SlurmSpec, VmSpec


class ResourcesSpec(Part):
    """Share of the machines that one trial occupies while it runs."""

    cpu: Positive = Field(
        default=1, description="CPU cores of one trial; a fraction shares a core."
    )
    gpu: NotNegative = Field(default=0, description="GPUs of one trial; a fraction shares a GPU.")
    max_failures: Annotated[int, Field(ge=0), AS_WHOLE] = Field(
        default=3, description="How often a crashed trial is continued; what it spent stays spent."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse what Ray cannot place."""
        gpu = peek_number(raw, "gpu", default=0)
        if gpu > 1 and gpu != int(gpu):
            yield Mistake(
                "gpu",
                f"a trial can share one GPU or have several whole ones, got {gpu:g}",
                f"use {int(gpu)} or {int(gpu) + 1}",
            )


#: Cluster targets that dpsweep has itself; a package may add others (``TARGET_GROUP``).
TARGETS = ("local", "ray")


TARGET_GROUP = "dpsweep.cluster"


TargetName = Annotated[
    str, BeforeValidator(known_name(TARGETS, TARGET_GROUP)), WithJsonSchema(name_schema(TARGETS))
]


#: What ``dpsweep cluster`` starts by a section of this name. A target of a package may have it.
LAUNCHED = ("kuberay", "slurm", "vm")


class ClusterSpec(Part):
    """Where trials run."""

    target: TargetName = Field(
        default="local",
        description="local: this machine; ray: a running Ray cluster; or the target of an "
        "installed package.",
    )
    num_cpus: Count | None = Field(default=None, description="local: CPU cores to use; null: all.")
    num_gpus: Annotated[int, Field(ge=0), AS_WHOLE] | None = Field(
        default=None, description="local: GPUs to use; null: all."
    )
    address: Text | None = Field(
        default=None,
        description="ray: address of the cluster, head:6379 or auto, on a machine of it.",
    )
    kuberay: KubeRaySpec | None = Field(
        default=None, description="What `dpsweep cluster render kuberay` needs besides."
    )
    slurm: SlurmSpec | None = Field(
        default=None, description="What `dpsweep cluster render slurm` needs besides."
    )
    vm: VmSpec | None = Field(
        default=None, description="What `dpsweep cluster render vm` needs besides."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse what no run joins, and keys that the target would ignore."""
        target = raw.get("target", "local")
        if target in LAUNCHED and target not in installed(TARGET_GROUP):
            yield Mistake(
                "target",
                f"{target!r} is not joined by a run",
                f"leave it out; `dpsweep cluster render {target} SPEC` starts one",
            )
        if target == "ray" and raw.get("address") is None:
            yield Mistake(
                "address",
                "is missing: target ray joins a running cluster",
                "give HOST:6379, or auto, on a machine of the cluster",
            )
        if target == "local" and raw.get("address") is not None:
            yield Mistake("address", "has no meaning for target local", "use target: ray")
        for key in ("num_cpus", "num_gpus"):
            if target == "ray" and raw.get(key) is not None:
                yield Mistake(
                    key, "has no meaning for target ray: the cluster is there", "remove it"
                )

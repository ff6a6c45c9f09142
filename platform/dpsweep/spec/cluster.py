"""The cluster and resources sections of a spec: where trials run, and what one occupies there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema

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

#: Steps in which Ray counts CPUs and GPUs.
_STEP = 1e-4


def _not_placed(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Refuse a number of CPUs or GPUs that Ray cannot place."""
    for key in ("cpu", "gpu"):
        if 0 < (share := peek_number(raw, key, default=0)) < _STEP:
            problem = f"is {share:g}, and Ray counts in steps of {_STEP:g}"
            yield Mistake(key, problem, f"use {_STEP:g} or more")
    gpu = peek_number(raw, "gpu", default=0)
    if gpu > 1 and gpu != int(gpu):
        yield Mistake(
            "gpu",
            f"a trial can share one GPU or have several whole ones, got {gpu:g}",
            f"use {int(gpu)} or {int(gpu) + 1}",
        )


@dataclass(frozen=True)
class Share:
    """CPU cores and GPUs that one trial occupies; a fraction shares one."""

    cpu: float
    gpu: float

    @property
    def device(self) -> str:
        """Where such a trial trains: ``cpu`` or ``cuda``."""
        return "cuda" if self.gpu else "cpu"

    @property
    def threads(self) -> int:
        """Threads of such a trial: one for each whole CPU, at least 1."""
        return max(1, int(self.cpu))

    def fits(self, node: Mapping[str, float]) -> int:
        """Return how many such trials a node has room for; a share of a GPU lies on one GPU."""
        most = _times(node.get("CPU", 0.0), self.cpu)
        gpus = node.get("GPU", 0.0)
        if not self.gpu:
            return most
        if self.gpu >= 1:
            return min(most, _times(gpus, self.gpu))
        whole = int(gpus)
        return min(most, whole * _times(1.0, self.gpu) + _times(gpus - whole, self.gpu))


def _times(there: float, share: float) -> int:
    """Return how often a share is there, by whole steps of Ray's."""
    return round(there / _STEP) // max(1, round(share / _STEP))


class MethodShareSpec(Part):
    """What trials of one method occupy instead."""

    cpu: Positive | None = Field(default=None, description="Instead of resources.cpu.")
    gpu: NotNegative | None = Field(default=None, description="Instead of resources.gpu.")

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse what Ray cannot place."""
        yield from _not_placed(raw)


class ResourcesSpec(Part):
    """Share of the machines that one trial occupies while it runs."""

    cpu: Positive = Field(
        default=1, description="CPU cores of one trial; a fraction shares a core."
    )
    gpu: NotNegative = Field(default=0, description="GPUs of one trial; a fraction shares a GPU.")
    by_method: dict[str, MethodShareSpec] = Field(
        default_factory=dict,
        description="Shares of trials of some methods, as in {bitfit: {gpu: 0.5}}; what is not "
        "named there is as above.",
    )
    max_failures: Annotated[int, Field(ge=0), AS_WHOLE] = Field(
        default=3, description="How often a crashed trial is continued; what it spent stays spent."
    )
    hang_minutes: Positive | None = Field(
        default=None,
        description="Minutes without a report after which a trial's process is ended, which counts "
        "as a crash; null: never.",
    )

    _is_base_used: bool = PrivateAttr(True)

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse what Ray cannot place."""
        yield from _not_placed(raw)

    def for_methods(self, methods: Collection[str]) -> ResourcesSpec:
        """Return the same for a study whose trials are of these methods."""
        resources = self.model_copy()
        resources._is_base_used = not methods or not set(methods) <= set(self.by_method)
        return resources

    def of(self, method: str) -> Share:
        """Return what a trial of a method occupies."""
        own = self.by_method.get(method, MethodShareSpec())
        return Share(
            self.cpu if own.cpu is None else own.cpu, self.gpu if own.gpu is None else own.gpu
        )

    def gpu_key(self, method: str) -> str:
        """Return the key that says which share of a GPU trials of a method have."""
        own = self.by_method.get(method, MethodShareSpec())
        return "resources.gpu" if own.gpu is None else f"resources.by_method.{method}.gpu"

    @property
    def shares(self) -> dict[str, Share]:
        """What trials may occupy, each share once, by the path of its section."""
        named = {"resources": Share(self.cpu, self.gpu)} if self._is_base_used else {}
        for method in self.by_method:
            if self.of(method) not in named.values():
                named[f"resources.by_method.{method}"] = self.of(method)
        return named


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
    wait_minutes: NotNegative = Field(
        default=0,
        description="ray: how long to wait for a node that has room for a trial, if none has, as "
        "an autoscaler brings some; then the study is refused.",
    )
    wait_nodes: Count = Field(
        default=1,
        description="ray: how many such nodes to wait for, as long; then the study begins on those "
        "that are there. An autoscaler is asked for the first.",
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
        waits = peek_number(raw, "wait_minutes", default=0) > 0
        is_many = peek_number(raw, "wait_nodes", default=1) > 1
        for key, is_set in (
            ("wait_minutes", waits and raw.get("vm") is None),  # whose driver waits so long
            ("wait_nodes", is_many),
        ):
            if target == "local" and is_set:
                yield Mistake(
                    key, "has no meaning for target local: this machine does not grow", "remove it"
                )
        if target == "ray" and is_many and not waits:
            problem, fix = "has no meaning without wait_minutes", "say how long to wait"
            yield Mistake("wait_nodes", problem, fix)
        for key in ("num_cpus", "num_gpus"):
            if target == "ray" and raw.get(key) is not None:
                yield Mistake(
                    key, "has no meaning for target ray: the cluster is there", "remove it"
                )

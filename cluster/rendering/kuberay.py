"""Kubernetes with KubeRay: a RayJob (ray.io/v1), its spec as a ConfigMap, its volume as a claim."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from dpsweep.cluster.rendering.base import (
    Command,
    FileRendering,
    commands,
    head_of,
    job_name,
    manifest,
    nodes_of,
    settings_of,
    shipped,
)
from dpsweep.cluster.rendering.places import check_places, needed_by_trials, needs_disk
from dpsweep.foundation.errors import Mistake
from dpsweep.spec.launching import UNATTENDED, KubeRaySpec
from dpsweep.spec.study import SweepSpec

#: The user of the image (Dockerfile).
USER = 1000
_SPECS, _FILE = "/etc/dpsweep", "sweep.yaml"
#: Ray kills a stopped job after 3 s; a study needs up to 25 to write its end.
_STOP_WAIT_S, _GRACE_S = "40", 60
#: Where nothing else can be mounted, above or below, and why.
_TAKEN_PLACES = {
    _SPECS: "where pods have their spec",
    "/dev/shm": "where KubeRay mounts memory for Ray",
    "/proc": "where the system tells of processes",
}
#: Variables that pods have from here, from KubeRay or from the image; a second value breaks them.
_TAKEN = ("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "FQ_RAY_IP")
_TAKEN_STARTS = ("RAY_", "KUBERAY_", "DPSWEEP_")


class KubeRayRendering(FileRendering):
    """A RayJob whose retry is a new driver with the same command, which continues the study."""

    name, suffix = "kuberay", "kuberay.yaml"

    @classmethod
    def content(cls, spec: SweepSpec) -> str:
        """Return one manifest; `kubectl apply` takes it."""
        settings: KubeRaySpec = settings_of(spec, cls.name)
        check_places(spec, settings.mount, others=_refused(spec, settings))
        claims = _claim(settings) if needs_disk(spec) else []
        documents = [*claims, _config(spec), _job(spec, settings)]
        return head_of(cls.name, cls.file_of(spec.name)) + manifest(*documents)

    @classmethod
    def submit(cls, study: str, folder: Path) -> list[Command]:
        """Apply the manifest."""
        return commands(["kubectl", "apply", "--filename", str(folder / cls.file_of(study))])

    @classmethod
    def status(cls, study: str, folder: Path) -> list[Command]:
        """Show the RayJob."""
        return commands(["kubectl", "get", "rayjob", job_name(study)])

    @classmethod
    def logs(cls, study: str, folder: Path) -> list[Command]:
        """Show what the driver has printed, which the submitter's pod follows."""
        selector = f"job-name={job_name(study)}"
        return commands(["kubectl", "logs", "--selector", selector, "--tail", "200"])

    @classmethod
    def stop(cls, study: str, folder: Path) -> list[Command]:
        """Delete the RayJob and its pods; claim and study stay."""
        return commands(["kubectl", "delete", "rayjob", job_name(study), "--ignore-not-found"])


def _refused(spec: SweepSpec, settings: KubeRaySpec) -> Iterator[Mistake]:
    """Yield what the API server or the kubelet refuses, or what would break the pods."""
    section, mount = f"cluster.{KubeRayRendering.name}", PurePosixPath(settings.mount)
    for taken, meaning in _TAKEN_PLACES.items() if needs_disk(spec) else ():
        if mount.is_relative_to(taken) or PurePosixPath(taken).is_relative_to(mount):
            side = "below" if mount.is_relative_to(taken) else "above"
            where = "is" if str(mount) == taken else f"is {side} {taken},"
            fix = "mount the volume elsewhere, as in /mnt/dpsweep"
            yield Mistake(f"{section}.mount", f"{settings.mount!r} {where} {meaning}", fix)
    for key in ("node_memory_gb", "head_memory_gb"):
        if _mebibytes(memory_gb := getattr(settings, key)) < 1:
            problem = f"is {memory_gb:g}, less than one MiB"
            yield Mistake(f"{section}.{key}", problem, "say how many GiB, as in 32")
    for number, name in enumerate(settings.secrets):
        key = f"{section}.secrets[{number}]"
        if name in _TAKEN or name.startswith(_TAKEN_STARTS):
            yield Mistake(key, f"{name} is set in pods already", "leave it out, or rename it")
        elif name in settings.secrets[:number]:
            yield Mistake(key, f"{name} stands there twice", "name it once")


def _claim(settings: KubeRaySpec) -> list[dict[str, Any]]:
    if settings.claim_gb is None:
        return []
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{settings.claim_gb}Gi"}},
    }
    if settings.storage_class is not None:
        spec["storageClassName"] = settings.storage_class
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": settings.claim},
            "spec": spec,
        }
    ]


def _config(spec: SweepSpec) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job_name(spec.name)},
        "data": {_FILE: shipped(spec)},
    }


def _job(spec: SweepSpec, settings: KubeRaySpec) -> dict[str, Any]:
    nodes = nodes_of(spec, "kuberay", settings)
    is_mounted = needs_disk(spec)
    of_head = _share(settings.head_cpus, settings.head_memory_gb)
    head = _container(settings, "ray-head", of_head, is_mounted)
    if settings.retries:
        head["env"].append({"name": UNATTENDED, "value": "1"})
    head["env"] += [_secret(settings, key) for key in settings.secrets]
    share = _share(nodes.cpus, settings.node_memory_gb)
    if nodes.gpus:
        share[settings.gpu_resource] = nodes.gpus
    worker = _container(settings, "ray-worker", share, is_mounted)
    needed = needed_by_trials(spec)
    worker["env"] += [_secret(settings, key) for key in settings.secrets if key in needed]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job_name(spec.name)},
        "spec": {
            "entrypoint": f"dpsweep run {_SPECS}/{_FILE}",
            "submissionMode": "K8sJobMode",
            "backoffLimit": settings.retries,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": settings.keep_s,
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "serviceType": "ClusterIP",
                    # No trial runs beside the driver. KubeRay asks the dashboard from outside of
                    # the pod, so it cannot stay on loopback; it answers to the token alone.
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": _pod(spec, settings, head),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "gpu" if nodes.gpus else "cpu",
                        "replicas": nodes.number,
                        "minReplicas": nodes.number,
                        "maxReplicas": nodes.number,
                        "rayStartParams": {"num-cpus": str(nodes.cpus)},
                        "template": _pod(spec, settings, worker),
                    }
                ],
            },
        },
    }


def _pod(spec: SweepSpec, settings: KubeRaySpec, container: dict[str, Any]) -> dict[str, Any]:
    config = {"name": job_name(spec.name)}
    account = settings.service_account
    state = {"name": "state", "persistentVolumeClaim": {"claimName": settings.claim}}
    return {
        "spec": {
            **({} if account is None else {"serviceAccountName": account}),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                *([state] if needs_disk(spec) else []),
                {"name": "spec", "configMap": config},
            ],
        }
    }


def _share(cpus: int, memory_gb: float) -> dict[str, Any]:
    return {"cpu": cpus, "memory": f"{_mebibytes(memory_gb)}Mi"}


def _mebibytes(memory_gb: float) -> int:
    return int(memory_gb * 1024)


def _secret(settings: KubeRaySpec, key: str) -> dict[str, Any]:
    reference = {"name": settings.secret, "key": key}
    return {"name": key, "valueFrom": {"secretKeyRef": reference}}


def _container(
    settings: KubeRaySpec, name: str, share: dict[str, Any], is_mounted: bool
) -> dict[str, Any]:
    state = {"name": "state", "mountPath": settings.mount}
    return {
        "name": name,
        "image": settings.image,
        "resources": {"requests": share, "limits": share},
        "env": [
            {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": _STOP_WAIT_S},
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            *([state] if is_mounted else []),
            {"name": "spec", "mountPath": _SPECS, "readOnly": True},
        ],
    }

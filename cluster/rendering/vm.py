"""Machines of a cloud, by Ray's cluster launcher (`ray up`); AWS is the provider."""

from __future__ import annotations

import shlex
from pathlib import Path
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
from dpsweep.cluster.rendering.places import check_places, needed_by_trials
from dpsweep.foundation.errors import BadInputError
from dpsweep.spec.launching import VmSpec
from dpsweep.spec.study import SweepSpec

_TOKEN = "~/.ray/auth_token"
_SECRETS = "~/.dpsweep.env"
_SPECS = "~/.dpsweep"
#: `ray up` returns when the head is there; its workers take minutes more.
_WAIT_MINUTES = 20
#: Linux takes 128 KiB in one argument, and each shell on the way quotes anew.
_LONGEST_ARGUMENT = 100_000
# Values are taken as they stand, as `docker run --env-file` does.
_READ_SECRETS = (
    f"if [ -f {_SECRETS} ]; then "
    """while IFS= read -r line || [ -n "$line" ]; do """
    """if [[ $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then export "$line"; """
    """elif [[ -n $line && $line != "#"* ]]; then """
    f"""echo "{_SECRETS}: a line is not NAME=value" >&2; exit 2; fi; """
    f"done < {_SECRETS}; fi"
)
# Without it Ray sends no token, whatever file or variable has one.
_JOB = "RAY_AUTH_MODE=token ray job"
_START = "export RAY_AUTH_MODE=token RAY_JOB_STOP_WAIT_TIME_S=40 RAY_USAGE_STATS_ENABLED=0; "


class VmRendering(FileRendering):
    """A head and as many machines as the trials need, each of which mounts one NFS export."""

    name, suffix = "vm", "vm.yaml"

    @classmethod
    def content(cls, spec: SweepSpec) -> str:
        """Return one file; `ray up` takes it."""
        settings: VmSpec = settings_of(spec, cls.name)
        check_places(spec, settings.mount, is_mounted=settings.nfs is not None)
        return head_of(cls.name, cls.file_of(spec.name)) + manifest(_cluster(spec, settings))

    @classmethod
    def submit(cls, study: str, folder: Path) -> list[Command]:
        """Start the machines, forget an ended job of this name, and submit the study on the head.

        Machines that are there go on as they are: a job of this name may be running on them. The
        driver gets the secrets that were copied there, if any.
        """
        file, job = str(folder / cls.file_of(study)), job_name(study)
        run = f"{_READ_SECRETS}; exec dpsweep run {_SPECS}/{study}.yaml"
        driver = shlex.join(["bash", "-c", run])
        return commands(
            ["ray", "up", "--yes", "--no-restart", file],
            ["ray", "exec", file, f"{_JOB} delete {job} || true"],
            ["ray", "exec", file, f"{_JOB} submit --submission-id {job} --no-wait -- {driver}"],
        )

    @classmethod
    def status(cls, study: str, folder: Path) -> list[Command]:
        """Ask Ray's job API on the head."""
        return cls._on_head(study, folder, "status")

    @classmethod
    def logs(cls, study: str, folder: Path) -> list[Command]:
        """Ask Ray's job API on the head."""
        return cls._on_head(study, folder, "logs")

    @classmethod
    def stop(cls, study: str, folder: Path) -> list[Command]:
        """Let the study save and end; then end all machines, in any case, as they cost money."""
        file = folder / cls.file_of(study)
        stop = ("ray", "exec", str(file), f"{_JOB} stop {job_name(study)}")
        down = ("ray", "down", "--yes", str(file))
        return [Command(stop, may_fail=True, file=file), Command(down, file=file)]

    @classmethod
    def _on_head(cls, study: str, folder: Path, verb: str) -> list[Command]:
        file = folder / cls.file_of(study)
        words = ("ray", "exec", str(file), f"{_JOB} {verb} {job_name(study)}")
        return [Command(words, file=file)]


def _cluster(spec: SweepSpec, settings: VmSpec) -> dict[str, Any]:
    nodes = nodes_of(spec, "vm", settings)
    copied = {_TOKEN: _TOKEN}
    if settings.secrets_file is not None:
        copied[_SECRETS] = settings.secrets_file
    waiting = {"wait_minutes": spec.cluster.wait_minutes or _WAIT_MINUTES}
    text = shipped(spec, {**waiting, "wait_nodes": nodes.number})
    making = f"mkdir -p {_SPECS} && printf %s {shlex.quote(text)} > {_SPECS}/{spec.name}.yaml"
    if len(shlex.quote(making).encode()) > _LONGEST_ARGUMENT:
        raise BadInputError(
            f"the spec is too long for a command line: {len(text.encode())} bytes",
            because="machines get it in one",
            fix="put long lists into files that all nodes mount, and name those",
        )
    return {
        "cluster_name": job_name(spec.name),
        "max_workers": nodes.number,
        "idle_timeout_minutes": 10,
        "provider": {"type": "aws", "region": settings.region, "cache_stopped_nodes": False},
        "auth": {"ssh_user": settings.ssh_user},
        "docker": {
            "image": settings.image,
            "container_name": "dpsweep",
            "pull_before_run": True,
            "run_options": [f"--volume={settings.mount}:{settings.mount}"] if settings.nfs else [],
        },
        "available_node_types": {
            # No trial runs beside the driver.
            "head": {
                "resources": {"CPU": 0},
                "node_config": _machine(settings.head_instance, settings),
            },
            "worker": {
                "min_workers": nodes.number,
                "max_workers": nodes.number,
                "resources": {"CPU": nodes.cpus} | ({"GPU": nodes.gpus} if nodes.gpus else {}),
                "node_config": _machine(settings.instance, settings),
            },
        },
        "head_node_type": "head",
        # The token of `ray get-auth-token --generate`, and secrets, go from your machine to these.
        "file_mounts": copied,
        "initialization_commands": _mounting(settings),
        "setup_commands": [],
        "head_setup_commands": [making],
        "worker_setup_commands": [],
        "head_start_ray_commands": [
            "ray stop",
            _START + "ray start --head --port=6379 --dashboard-host=127.0.0.1 "
            "--autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": [
            "ray stop",
            _START + _handed(spec, settings) + "ray start --address=$RAY_HEAD_IP:6379",
        ],
    }


def _mounting(settings: VmSpec) -> list[str]:
    if settings.nfs is None:
        return []
    mount, export = shlex.quote(settings.mount), shlex.quote(settings.nfs)
    return [
        "command -v mount.nfs4 || (sudo apt-get update && sudo apt-get install -y nfs-common)",
        f"sudo mkdir -p {mount}",
        f"mountpoint -q {mount} || sudo mount -t nfs4 -o nfsvers=4.1,hard {export} {mount}",
    ]


def _handed(spec: SweepSpec, settings: VmSpec) -> str:
    """Return what hands trials the secrets that they need; those stand in no command line."""
    if settings.secrets_file is None:
        return ""
    return "".join(
        f"{name}=$(sed -n 's/^{name}=//p' {_SECRETS} | tail -n 1); "
        f'[ -z "${name}" ] || export {name}; '
        for name in needed_by_trials(spec)
    )


def _machine(instance: str, settings: VmSpec) -> dict[str, Any]:
    machine: dict[str, Any] = {"InstanceType": instance}
    if settings.ami is not None:
        machine["ImageId"] = settings.ami
    if settings.role is not None:
        machine["IamInstanceProfile"] = {"Name": settings.role}
    return machine

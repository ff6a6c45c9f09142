"""Sections of a spec that say how ``dpsweep cluster`` starts a cluster; ``dpsweep run`` reads none.

Their values stand in files that shells and other programs read, so each has its own alphabet.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from dpsweep.spec.base import AS_TEXT, AS_WHOLE, Count, Part, Positive, seen

#: Variable of a driver that a scheduler may have started again by itself, with nothing mended.
UNATTENDED = "DPSWEEP_UNATTENDED"
#: Its values where a person has started it, as if it were not set.
ATTENDED = ("", "0")


def _matching(pattern: str, alphabet: str) -> AfterValidator:
    """Return the check of a text against a pattern, which says what is allowed."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None or {".", ".."} & set(value.split("/")):
            raise ValueError(f"{seen(value)} is not allowed here: {alphabet}")
        return value

    return AfterValidator(check)


_PLACE = _matching(r"(/[A-Za-z0-9_+.-]+)+", "an absolute path of letters, digits and _ + . -")
_IMAGE = _matching(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}", "an image's name, as NAME:TAG")
_VARIABLE = _matching(r"[A-Z_][A-Z0-9_]{0,63}", "the name of an environment variable, as TOKEN")
_WORD = _matching(r"[A-Za-z0-9][A-Za-z0-9._,@+-]{0,63}", "letters, digits and . _ , @ + -")
_LABEL = _matching(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "lower-case letters, digits and -")
_RESOURCE = _matching(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*", "a name as nvidia.com/gpu")
_AMI = _matching(r"ami-[0-9a-f]{8,17}", "a name as ami-0123456789abcdef0")
_EXPORT = _matching(r"[A-Za-z0-9][A-Za-z0-9.-]*:(/[A-Za-z0-9_+.-]*)+", "HOST:/PATH")
_FILE = _matching(r"[~/][A-Za-z0-9_+./-]*", "an absolute path, or one below ~/")

Place = Annotated[str, _PLACE, AS_TEXT]
Image = Annotated[str, _IMAGE, AS_TEXT]
Variable = Annotated[str, _VARIABLE, AS_TEXT]
Word = Annotated[str, _WORD, AS_TEXT]
Label = Annotated[str, _LABEL, AS_TEXT]
Resource = Annotated[str, _RESOURCE, AS_TEXT]
MachineImage = Annotated[str, _AMI, AS_TEXT]
Export = Annotated[str, _EXPORT, AS_TEXT]
LocalFile = Annotated[str, _FILE, AS_TEXT]
Whole = Annotated[int, Field(ge=0), AS_WHOLE]


class LaunchSpec(Part):
    """What all of them have: the size of one node, and how many there may be."""

    is_hinted: ClassVar[bool] = False

    node_cpus: Count = Field(default=8, description="CPU cores of one node on which trials run.")
    node_gpus: Whole | None = Field(
        default=None, description="GPUs of one node; null: as many as one trial needs."
    )
    max_nodes: Count = Field(
        default=4,
        description="Most nodes on which trials run; fewer, if search.num_trials and "
        "search.max_concurrent need fewer.",
    )


class KubeRaySpec(LaunchSpec):
    """A RayJob on Kubernetes with KubeRay (``dpsweep cluster render kuberay``)."""

    image: Image = Field(description="say which image has dpsweep (Dockerfile), with its tag")
    node_memory_gb: Positive = Field(default=32, description="GiB of memory of one node.")
    head_cpus: Count = Field(default=2, description="CPU cores of the head, where no trial runs.")
    head_memory_gb: Positive = Field(default=8, description="GiB of memory of the head.")
    mount: Place = Field(
        default="/mnt/dpsweep",
        description="Where pods see the volume; storage.path is in it, or in a bucket: then there "
        "is no volume.",
    )
    claim: Label = Field(
        default="dpsweep", description="PersistentVolumeClaim of the volume that keeps studies."
    )
    claim_gb: Count | None = Field(
        default=None, description="GiB of a claim to make (ReadWriteMany); null: it is there."
    )
    storage_class: Label | None = Field(
        default=None, description="StorageClass of a claim to make; null: the cluster's default."
    )
    service_account: Label | None = Field(
        default=None,
        description="ServiceAccount of the pods, whose role opens a bucket; null: the default.",
    )
    secret: Label = Field(default="dpsweep", description="Kubernetes Secret that has `secrets`.")
    secrets: tuple[Variable, ...] = Field(
        default=(),
        description="Environment variables whose values are keys of that Secret; names only.",
    )
    gpu_resource: Resource = Field(
        default="nvidia.com/gpu", description="What the cluster calls a GPU."
    )
    retries: Whole = Field(
        default=3, description="How often a new driver continues a study whose driver failed."
    )
    keep_s: Whole = Field(default=600, description="Seconds for which pods are kept at the end.")


class SlurmSpec(LaunchSpec):
    """A batch job of Slurm (``dpsweep cluster render slurm``)."""

    minutes: Annotated[int, Field(ge=10), AS_WHOLE] = Field(
        default=1440, description="Time limit; the study is saved before it, and queued again."
    )
    requeues: Whole = Field(
        default=20, description="How often it is queued again at its time limit."
    )
    partition: Word | None = Field(default=None, description="Partition; null: the default.")
    account: Word | None = Field(default=None, description="Account; null: the default.")
    qos: Word | None = Field(default=None, description="Quality of service; null: the default.")
    venv: Place | None = Field(
        default=None,
        description="Virtual environment with dpsweep, on all nodes; null: dpsweep is on PATH.",
    )
    state: Place | None = Field(
        default=None,
        description="Directory for the job's own files, on all nodes; null: .slurm in "
        "storage.path, which must not be a bucket then.",
    )
    port: Annotated[int, Field(ge=1024, le=65535), AS_WHOLE] = Field(
        default=6379, description="Port of Ray's head."
    )
    secrets: tuple[Variable, ...] = Field(
        default=(),
        description="Environment variables that must be set where sbatch is called; names only.",
    )


class VmSpec(LaunchSpec):
    """Machines of AWS, by Ray's cluster launcher (``dpsweep cluster render vm``)."""

    image: Image = Field(description="say which image has dpsweep (Dockerfile), with its tag")
    region: Label = Field(description="say in which region machines are started")
    instance: Word = Field(
        description="say which type of machine trials run on; node_cpus and node_gpus are its own"
    )
    head_instance: Word = Field(
        default="m5.large", description="Type of the head's machine, where no trial runs."
    )
    ami: MachineImage | None = Field(
        default=None, description="Image of the machines, with Docker; null: Ray's default."
    )
    ssh_user: Word = Field(default="ubuntu", description="Who logs in there.")
    nfs: Export | None = Field(
        default=None,
        description="NFS export that keeps studies, as HOST:/PATH (EFS, for example); null: "
        "storage.path is in a bucket.",
    )
    mount: Place = Field(
        default="/mnt/dpsweep", description="Where machines see it; storage.path is in it."
    )
    role: Word | None = Field(
        default=None,
        description="Instance profile of the machines, which opens a bucket; null: Ray's default.",
    )
    secrets_file: LocalFile | None = Field(
        default=None,
        description="File on your machine with NAME=value lines that the driver gets as its "
        "environment; it is copied, never shown.",
    )

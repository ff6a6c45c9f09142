"""The interface of a rendering: files that start a sweep somewhere, and commands around them."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import yaml

from dpsweep.foundation.errors import BadInputError, Mistake, ResourceError, SpecError
from dpsweep.spec.cluster import LAUNCHED
from dpsweep.spec.document.writing import dump_yaml
from dpsweep.spec.launching import LaunchSpec
from dpsweep.spec.study import SweepSpec

_LONGEST_NAME = 30
#: How a driver on a machine of the cluster joins it.
JOINED = {"target": "ray", "address": "auto"}


@dataclass(frozen=True)
class Command:
    """A command as a list of arguments; no shell reads it here.

    Attributes:
        arguments: Program and arguments.
        may_fail: Whether the next command follows in any case.
        server: Address (a URL) that it speaks to, and that must answer before it is run.
        file: What it reads in the folder of the submission; it must be there before it is run.
        is_written_late: Whether that file is there only once the job has begun.
    """

    arguments: tuple[str, ...]
    may_fail: bool = False
    server: str | None = None
    file: Path | None = None
    is_written_late: bool = False

    def __str__(self) -> str:
        """Return it as a person types it into a shell."""
        return shlex.join(self.arguments) + (" || true" if self.may_fail else "")


@dataclass(frozen=True)
class Nodes:
    """The nodes on which trials run.

    Attributes:
        number: How many.
        cpus: CPU cores of each.
        gpus: GPUs of each.
    """

    number: int
    cpus: int
    gpus: int


class Rendering(ABC):
    """What a person needs to start one sweep in one kind of place.

    A rendering holds no secret: values of environment variables are named, never read. Commands
    that come after the submission need the study's name alone.

    Attributes:
        name: Name on the command line, and of the section below ``cluster`` that it reads.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def files(cls, spec: SweepSpec) -> dict[str, str]:
        """Return the files that a submission needs, by name.

        Raises:
            BadInputError: The spec cannot run there, or something is missing in it.
        """

    @classmethod
    def render(cls, spec: SweepSpec) -> dict[str, str]:
        """Return the files that a person needs to start the sweep, by name.

        Raises:
            BadInputError: As ``files``; or a person needs none.
        """
        return cls.files(spec)

    @classmethod
    @abstractmethod
    def submit(cls, study: str, folder: Path) -> list[Command]:
        """Return the commands that start the sweep whose files lie in a folder."""

    @classmethod
    @abstractmethod
    def status(cls, study: str, folder: Path) -> list[Command]:
        """Return the commands that show how far it is."""

    @classmethod
    @abstractmethod
    def logs(cls, study: str, folder: Path) -> list[Command]:
        """Return the commands that show what it has printed."""

    @classmethod
    @abstractmethod
    def stop(cls, study: str, folder: Path) -> list[Command]:
        """Return the commands that end it; submitting it again continues the study."""


class FileRendering(Rendering):
    """A rendering that is one file, named after its study.

    Attributes:
        suffix: End of the file's name.
    """

    suffix: ClassVar[str]

    @classmethod
    def file_of(cls, study: str) -> str:
        """Return the name of the file."""
        return f"{study}.{cls.suffix}"

    @classmethod
    @abstractmethod
    def content(cls, spec: SweepSpec) -> str:
        """Return what the file holds.

        Raises:
            BadInputError: As ``files``.
        """

    @classmethod
    def files(cls, spec: SweepSpec) -> dict[str, str]:
        """Return the file; see ``Rendering``."""
        return {cls.file_of(spec.name): cls.content(spec)}


def job_name(study: str) -> str:
    """Return a name of a study that every scheduler takes: at most 47 letters, digits and dashes.

    >>> job_name("digits-eps2")
    'dpsweep-digits-eps2'
    >>> job_name("digits_eps2")
    'dpsweep-digits-eps2-7fbac469'
    """
    plain = re.sub(r"[^a-z0-9-]", "-", study)[:_LONGEST_NAME].strip("-")
    if plain != study:  # another study must not get the same one
        plain = f"{plain}-{hashlib.sha256(study.encode()).hexdigest()[:8]}"
    return f"dpsweep-{plain}"


def settings_of(spec: SweepSpec, name: str) -> Any:
    """Return the section of a rendering.

    Raises:
        SpecError: It is not there.
    """
    settings = getattr(spec.cluster, name)
    if settings is None:
        fix = f"say what {name} needs, as docs/cluster.md shows"
        raise SpecError([Mistake(f"cluster.{name}", "is missing", fix).at(spec.where)])
    return settings


def nodes_of(spec: SweepSpec, name: str, settings: LaunchSpec) -> Nodes:
    """Return as many nodes as the trials need that may run at once, at most ``max_nodes``.

    Raises:
        ResourceError: A node has no room for one trial.
    """
    shares = spec.resources.shares
    most = math.ceil(max(share.gpu for share in shares.values()))
    gpus = most if settings.node_gpus is None else settings.node_gpus
    node = {"CPU": settings.node_cpus, "GPU": gpus}
    place, share = min(shares.items(), key=lambda named: named[1].fits(node))
    slots = share.fits(node)
    if slots < 1:
        raise ResourceError(
            f"a trial asks for {place}.cpu={share.cpu:g} and {place}.gpu={share.gpu:g}",
            because=f"a node of cluster.{name} has {settings.node_cpus} CPUs and {gpus} GPUs",
            fix=f"raise cluster.{name}.node_cpus or node_gpus, or lower resources",
        )
    at_once = math.inf if spec.search.max_concurrent is None else spec.search.max_concurrent
    if spec.episodes is None:  # else their number counts, times the configurations
        at_once = min(at_once, spec.search.num_trials + spec.num_starts)
    number = settings.max_nodes if at_once == math.inf else math.ceil(at_once / slots)
    return Nodes(min(settings.max_nodes, number), settings.node_cpus, gpus)


def shipped(spec: SweepSpec, waiting: Mapping[str, float] = MappingProxyType({})) -> str:
    """Return the spec that the driver gets: as written, joining the cluster that it is on.

    Args:
        spec: As it was given.
        waiting: Keys of ``cluster`` on how long it waits for which nodes.
    """
    written = {key: value for key, value in spec.as_written().items() if key != "cluster"}
    return dump_yaml({**written, "cluster": {**JOINED, **waiting}})


def manifest(*documents: Mapping[str, Any]) -> str:
    """Return plain data as YAML, one document each; texts of several lines stay readable."""
    return "---\n".join(
        yaml.dump(
            dict(document), Dumper=_Dumper, sort_keys=False, width=100, default_flow_style=False
        )
        for document in documents
    )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def head_of(name: str, file: str) -> str:
    """Return the first line of a rendered file, which says where it comes from."""
    return f"# {file}: rendered by `dpsweep cluster render {name}`\n"


def commands(*each: Sequence[str]) -> list[Command]:
    """Return commands from lists of arguments."""
    return [Command(tuple(arguments)) for arguments in each]


def nothing_to_render(name: str, reason: str) -> BadInputError:
    """Return the error for a target that needs no files."""
    others = ", ".join(LAUNCHED)
    return BadInputError(
        f"there is nothing to render for {name}: {reason}", fix=f"rendered are {others}"
    )

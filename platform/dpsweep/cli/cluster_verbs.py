"""The verbs of clusters: ``dpsweep cluster render``, ``submit``, ``status``, ``logs``, ``stop``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsweep.cli.base import Sets, Spec, say, source_of
from dpsweep.cluster.rendering import RENDERINGS
from dpsweep.foundation.errors import BadInputError, ResourceError, SweepError
from dpsweep.foundation.servers import why_silent
from dpsweep.planning.reading import read_spec
from dpsweep.spec.study import NAME

if TYPE_CHECKING:
    from dpsweep.cluster.rendering.base import Command
    from dpsweep.spec.study import SweepSpec

cluster = typer.Typer(
    no_args_is_help=True,
    help="Sweeps on Kubernetes, Slurm or cloud machines.",
)


def _targets() -> list[str]:
    return list(RENDERINGS)


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="kuberay | slurm | vm | ray, or what a package adds.",
        autocompletion=_targets,
    ),
]
Study = Annotated[str, typer.Argument(metavar="STUDY", help="Spec file, or name of the study.")]
Folder = Annotated[Path, typer.Option("--to", help="Folder of rendered files.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the commands; run none, write nothing.")
]
#: Seconds in which a server has to answer.
_ANSWERS_S = 5


@cluster.command()
def render(
    target: Target,
    spec: Spec,
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder to write the files to; default: print them.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Print, or write, the files that start a sweep there; nothing is started."""
    files = RENDERINGS[target].render(_read(spec, sets))
    if to is None:
        print("\n".join(files.values()), end="")
        return
    for path in _write(files, to):
        say(f"written: {path}")


@cluster.command()
def submit(
    target: Target, spec: Spec, to: Folder = Path(), dry_run: DryRun = False, sets: Sets = None
) -> None:
    """Render the files and start the sweep; for a study that was interrupted, continue it."""
    rendering, read = RENDERINGS[target], _read(spec, sets)
    commands, files = rendering.submit(read.name, to), rendering.files(read)
    if not dry_run:
        _check(target, commands)
        _write(files, to)
    _execute(commands, dry_run)


@cluster.command()
def status(target: Target, study: Study, to: Folder = Path(), dry_run: DryRun = False) -> None:
    """Show how far the job is; `dpsweep status` shows the trials where storage.path is."""
    _ask(target, RENDERINGS[target].status, study, to, dry_run)


@cluster.command()
def logs(target: Target, study: Study, to: Folder = Path(), dry_run: DryRun = False) -> None:
    """Show what the job has printed."""
    _ask(target, RENDERINGS[target].logs, study, to, dry_run)


@cluster.command()
def stop(target: Target, study: Study, to: Folder = Path(), dry_run: DryRun = False) -> None:
    """End the job; the study stays, and `submit` continues it."""
    _ask(target, RENDERINGS[target].stop, study, to, dry_run)


def _ask(
    target: str,
    commands_of: Callable[[str, Path], list[Command]],
    study: str,
    folder: Path,
    dry_run: bool,
) -> None:
    commands = commands_of(_name(study), folder)
    if not dry_run:
        _check(target, commands)
    _execute(commands, dry_run)


def _read(spec: str, sets: list[str] | None) -> SweepSpec:
    """Read a spec; its places are those of the cluster, so nothing is looked for here."""
    source, name = source_of(spec)
    return read_spec(source, overrides=sets or [], text_name=name)


def _name(study: str) -> str:
    """Return the name of a study that is named, or whose spec is."""
    if study == "-" or Path(study).is_file():
        return _read(study, None).name
    if re.fullmatch(NAME, study) is None:
        raise BadInputError(
            f"{study!r} is neither a spec file nor the name of a study",
            fix="give the file that was submitted, or the `name:` in it",
        )
    return study


def _write(files: dict[str, str], folder: Path) -> list[Path]:
    """Write rendered files, each below the folder, and return their paths.

    Raises:
        BadInputError: One cannot be written.
    """
    paths = [folder / name for name in files]
    for path, text in zip(paths, files.values()):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise BadInputError(
                f"{path} cannot be written", because=str(error), fix="name another folder: --to"
            ) from error
    return paths


def _program(name: str) -> str | None:
    """Return the path of a program: on PATH, or of this Python's environment."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), beside)))


def _check(target: str, commands: Sequence[Command]) -> None:
    """Refuse what cannot be run here, or speaks to nobody: its own answer would be a traceback.

    Raises:
        BadInputError: A program is missing, or a file of the submission.
        ResourceError: A server does not answer.
    """
    missing = sorted({c.arguments[0] for c in commands if _program(c.arguments[0]) is None})
    if missing:
        raise BadInputError(
            f"{', '.join(missing)} is not here, and cluster {target} needs it",
            fix="install it, or go where it is; --dry-run prints the commands",
        )
    for command in commands:
        if command.file is not None and not command.file.is_file():
            late = "it has another folder, or the job has not begun"
            raise BadInputError(
                f"there is no {command.file.name} in {command.file.parent.resolve()}",
                because=late if command.is_written_late else None,
                fix="name the folder that it was submitted with: --to FOLDER",
            )
    for server in {command.server for command in commands if command.server}:
        if silent := why_silent(server, _ANSWERS_S):
            raise ResourceError(
                f"nothing answers at {server}, which cluster {target} speaks to",
                because=silent,
                fix="start it, or say where it is (of ray: RAY_API_SERVER_ADDRESS)",
            )


def _execute(commands: Sequence[Command], dry_run: bool) -> None:
    """Run commands one after the other, without a shell, or print them."""
    if dry_run:
        print("\n".join(map(str, commands)))
        return
    for command in commands:
        say(f"$ {command}")
        program, *arguments = command.arguments
        code = subprocess.run([_program(program) or program, *arguments]).returncode
        if code and not command.may_fail:
            raise SweepError(f"`{command}` failed", because=f"its exit status is {code}")

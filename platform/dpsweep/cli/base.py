"""Base of the command line's verbs: options, reading a spec, talking to stderr."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsweep.cli.completion import study_names
from dpsweep.cli.output import Format
from dpsweep.cli.tables import TALK, talk, width
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import file_path
from dpsweep.foundation.process.interrupts import raise_lost
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec

if TYPE_CHECKING:
    from dpsweep.foundation.file_paths import FilePath as Folder
    from dpsweep.planning.preflight import Preflight
else:
    Folder = Path  # Typer takes no union; its parser makes either of them

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="Spec file (YAML), or - for stdin.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the spec; repeatable."),
]


def _format(context: typer.Context, value: Format) -> Format:
    """Return the format that ``--json`` says, which is read before, or else ``-f``."""
    return Format.JSON if context.params.get("as_json") else value


Output = Annotated[
    Format, typer.Option("-f", "--format", callback=_format, help="How to print data.")
]
#: Stands beside each ``Output``, which it decides: a verb looks at that alone.
Json = Annotated[bool, typer.Option("--json", is_eager=True, help="Same as -f json.")]
Root = Annotated[
    Folder | None,
    typer.Option(
        "--root",
        parser=file_path,
        metavar="DIR",
        help="Folder of studies, or s3://BUCKET/FOLDER; default: $DPSWEEP_STUDIES or studies/.",
    ),
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        help="Store of a NAME that is mlflow:EXPERIMENT/NAME; default: $MLFLOW_TRACKING_URI or "
        "sqlite:///mlflow.db.",
    ),
]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the study.", autocompletion=study_names),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say at length what each epsilon covers, and why.")
]


_STARTED = time.monotonic()  # of this command, but for Python itself


def stage(text: str, *, is_timed: bool = True) -> str:
    """Return a line that says what a long command is at, after how many seconds of it.

    Raises:
        KeyboardInterrupt: Ctrl-C has come, and the step before has swallowed it.
    """
    raise_lost()
    seconds = f"{time.monotonic() - _STARTED:5.1f} s  " if is_timed else " " * 9
    return seconds + text


def say(text: str) -> None:
    """Write talk to stderr; lines break between words (``tables.talk``)."""
    print("\n".join(talk(text, width(TALK))), file=sys.stderr, flush=True)


def source_of(spec: str) -> tuple[Path | str, str]:
    """Return the file of a spec, or its text and what to call that: of stdin, or in a bucket.

    Raises:
        BadInputError: A bucket has no such file.
    """
    if spec == "-":
        return sys.stdin.read(), "stdin"
    path = file_path(spec)
    if isinstance(path, Path):
        return path, spec
    try:
        return path.read_text(), spec
    except FileNotFoundError:
        raise BadInputError(
            f"{spec}: no such file", fix="give the address of a spec, as `dpsweep status` does"
        ) from None


def load_checked(spec: str, sets: list[str] | None) -> Preflight:
    """Read and check a spec whole: its own mistakes and those that its methods know."""
    source, name = source_of(spec)
    spec_read = read_spec(
        source, overrides=sets or [], text_name=name, say=lambda text: say(f"note: {text}")
    )
    checked = preflight(spec_read)
    for note in checked.notes:
        say(f"note: {note}")
    return checked

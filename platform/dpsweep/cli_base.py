"""What the verbs of the command line share: options, reading a spec, talking to stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsweep.output import Format

if TYPE_CHECKING:
    from dpsweep.preflight import Preflight

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="Spec file (YAML), or - for stdin.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the spec; repeatable."),
]
Output = Annotated[Format, typer.Option("-f", "--format", help="How to print data.")]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Folder of studies; default: $DPSWEEP_STUDIES or studies/."),
]
Json = Annotated[bool, typer.Option("--json", help="Same as -f json.")]


def say(text: str) -> None:
    """Write talk to stderr."""
    print(text, file=sys.stderr, flush=True)


def load_checked(spec: str, sets: list[str] | None) -> Preflight:
    """Read and check a spec whole: its own mistakes and those that its methods know."""
    from dpsweep.preflight import preflight, read_spec

    source = sys.stdin.read() if spec == "-" else Path(spec)
    checked = preflight(read_spec(source, overrides=sets or []))
    for note in checked.notes:
        say(f"note: {note}")
    return checked

"""The verb that hands the trials of a study to other tools, as a file or on stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsweep.cli.base import Name, Root, TrackingUri, say
from dpsweep.cli.written import write_file
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import counted, encodable, plain
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.rows import csv_text, json_text, parquet_bytes, trial_rows

Kind = Literal["csv", "json", "parquet"]
KINDS: dict[str, Kind] = {".csv": "csv", ".json": "json", ".parquet": "parquet"}


def export(
    name: Name,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="File to write; default, or -: stdout."),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("-f", "--format", help="Default: by the file's suffix; of stdout, csv."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    root: Root = None,
    tracking_uri: TrackingUri = None,
) -> None:
    """Write all trials for other tools: csv, json or parquet.

    Each trial is a row, and beside its epsilon stand all terms of it.
    """
    path = None if to in (None, Path("-")) else to
    chosen = kind or _kind_of(path)
    if path is None and chosen == "parquet":
        raise BadInputError("parquet is no text", fix="name a file: --to trials.parquet")
    if path is not None and path.exists() and not force:
        raise BadInputError(f"{path} exists already", fix="choose another name, or add --force")
    result = load_sweep(name, root=root, tracking_uri=tracking_uri)
    if result.unreleased:
        say(result.unreleased)
    rows = trial_rows(result)
    if chosen == "parquet":
        content = parquet_bytes(result)
    else:
        content = encodable((csv_text if chosen == "csv" else json_text)(rows)).encode()
    if path is None:
        sys.stdout.write(plain(content.decode()))
    else:
        write_file(path, content)
        say(f"wrote {path}: {counted(len(rows), 'trial')}, every epsilon with its terms")
    for line in [*result.score_notes(), *([result.source] if result.source else [])]:
        say(f"note: {line}")


def _kind_of(path: Path | None) -> Kind:
    if path is None:
        return "csv"
    if path.suffix not in KINDS:
        raise BadInputError(
            f"{path}: of which format is a file with the suffix {path.suffix or 'of none'}?",
            fix=f"a name that ends in {', '.join(KINDS)}, or -f",
        )
    return KINDS[path.suffix]

"""The verb that compares noise and gradient in every layer of a trial's network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsweep.cli.base import Json, Output, Root, say
from dpsweep.cli.completion import study_names
from dpsweep.cli.output import Format, print_records
from dpsweep.results.layers import study_layers, study_records, write_figure
from dpsweep.results.study import load_sweep


def layers(
    name: Annotated[
        str,
        typer.Argument(metavar="STUDY", help="Name of the study.", autocompletion=study_names),
    ],
    trial: Annotated[int | None, typer.Option(help="This trial; default: the best one.")] = None,
    at: Annotated[
        Literal["initial", "best"],
        typer.Option(help="Weights before the first step, or those of the best checkpoint."),
    ] = "initial",
    records: Annotated[
        int, typer.Option(min=1, help="Public records to estimate gradients from, at most.")
    ] = 256,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE.png", help="Draw the table, too.")
    ] = None,
    root: Root = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Show noise against gradient and what trains, by layer, from public records."""
    result = load_sweep(name, root=root)
    table = study_layers(result, study_records(result), trial=trial, at=at, num_records=records)
    if figure is not None:
        write_figure(table, figure)
        say(f"drawn: {figure}")
    if output in (Format.JSON, Format.YAML):
        print_records(table.to_dict(), output)
        return
    rows = [layer.to_dict() for layer in table.figures.layers]
    if output is Format.TABLE:
        rows = [{**row, "layer": row["layer"] or "(network)"} for row in rows]
    print_records(rows, output)
    if output is Format.TABLE:
        say(table.title())

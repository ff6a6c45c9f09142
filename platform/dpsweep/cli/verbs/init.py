"""The verb that writes specs to start from: one of your own, or a paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpsweep.cli.base import Output, say
from dpsweep.cli.completion import method_names, preset_names
from dpsweep.cli.output import Format, print_records
from dpsweep.foundation.errors import BadInputError
from dpsweep.search_spaces import Kind, preset_spec, preset_titles, starter_spec
from dpsweep.spec.study import SweepSpec


def init(
    path: Annotated[
        Path | None, typer.Argument(help="File to write; default, or -: stdout.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits (default) | fashion_mnist | npz | image_folder | text, or a package's."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="dp_sgd (default; of text: bitfit), or another with a recommended space, also "
            "of an installed package.",
            autocompletion=method_names,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="A paper's study, as in tramer2021/fashion_mnist.", autocompletion=preset_names
        ),
    ] = None,
    no_search: Annotated[
        bool,
        typer.Option(
            "--no-search",
            help="One run, at the whole budget, of a configuration whose learning rate follows "
            "from the noise.",
        ),
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Very noisy probes that find one number, then one run with nearly the whole "
            "budget.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    presets: Annotated[bool, typer.Option("--presets", help="List the presets.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Write a starter spec, every key explained; or a preset: a paper's study."""
    chosen = [
        name
        for name, value in (("--preset", preset), ("--presets", presets), ("--schema", schema))
        if value
    ]
    if len(chosen) > 1:
        raise BadInputError(f"{' and '.join(chosen)} exclude each other", fix="give one of them")
    if no_search and probe:
        raise BadInputError("--no-search and --probe exclude each other", fix="give one of them")
    kinds = [
        name for name, is_asked in (("--no-search", no_search), ("--probe", probe)) if is_asked
    ]
    if chosen and (dataset is not None or method is not None or kinds):
        named = f"{kinds[0]} has" if kinds else "--dataset and --method have"
        raise BadInputError(
            f"{named} no meaning for {chosen[0]}",
            fix=f"remove them, or {chosen[0]}",
        )
    if path == Path("-"):
        path = None
    if presets and path is not None:
        raise BadInputError("--presets writes no file", fix=f"remove {path}, or redirect stdout")
    if presets:
        rows = [{"preset": name, "about": title} for name, title in preset_titles().items()]
        print_records(rows, output)
        return
    if schema:
        text = json.dumps(SweepSpec.json_schema(), indent=2) + "\n"
    elif preset is not None:
        text = preset_spec(preset)
    else:
        kind: Kind = "probe" if probe else "single" if no_search else "search"
        text = starter_spec(dataset or "digits", method, kind=kind)
    if path is None:
        print(text, end="")
        return
    if path.exists() and not force:
        raise BadInputError(f"{path} exists already", fix="choose another name, or add --force")
    try:
        path.write_text(text)
    except OSError as error:
        problem = f"{path} cannot be written: {error.strerror}"
        raise BadInputError(problem, fix="name a file in a directory that is there") from error
    say(f"wrote {path}; next: dpsweep plan {path}")

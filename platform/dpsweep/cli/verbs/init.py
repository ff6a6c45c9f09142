"""The verb that writes specs to start from: one of your own, or a paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpsweep.cli.base import Json, Output, say
from dpsweep.cli.completion import method_names, preset_names
from dpsweep.cli.output import Format, print_records
from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.reading import read_spec
from dpsweep.search_spaces import Kind, OwnData, preset_spec, preset_titles, starter_spec
from dpsweep.search_spaces.all_methods import all_methods_spec
from dpsweep.spec.study import SweepSpec


def init(
    path: Annotated[
        Path | None, typer.Argument(help="File to write; default, or -: stdout.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits (default) | mnist | fashion_mnist | cifar10 | cifar100 | svhn | celeba | "
            "npz | image_folder | image_dataset | text, or a package's."
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
    all_methods: Annotated[
        bool,
        typer.Option(
            "--all-methods",
            help="Every method that fits the data, as many trials each, at one epsilon.",
        ),
    ] = False,
    data_path: Annotated[
        str | None,
        typer.Option(
            help="Your own file or directory, in the place of the data of the starter or preset."
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=2, help="Number of its classes or attributes (npz, text).")
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(min=1, help="Public number of its training records; may be rounded."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Pixels that its images are resized to.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Of texts: directory of a public network with its tokenizer."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    presets: Annotated[bool, typer.Option("--presets", help="List the presets.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema.")] = False,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Write a starter spec, every key explained; or a preset: a paper's study."""
    chosen = [
        name
        for name, value in (("--preset", preset), ("--presets", presets), ("--schema", schema))
        if value
    ]
    if len(chosen) > 1:
        raise BadInputError(f"{' and '.join(chosen)} exclude each other", fix="give one of them")
    if all_methods and (method is not None or probe or chosen):
        other = "--method" if method is not None else "--probe" if probe else chosen[0]
        raise BadInputError(f"--all-methods and {other} exclude each other", fix="give one of them")
    if no_search and probe:
        raise BadInputError("--no-search and --probe exclude each other", fix="give one of them")
    kinds = [
        name for name, is_asked in (("--no-search", no_search), ("--probe", probe)) if is_asked
    ]
    own = _own_data(data_path, dataset, classes, records, image_size, encoder)
    is_named = method is not None or (dataset is not None and not (preset and own))
    if chosen and (is_named or kinds or (own and not preset)):
        named = f"{kinds[0]} has" if kinds else "--dataset and --method have"
        named = "--data-path has" if own and not preset else named
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
        text = preset_spec(preset, own)
    else:
        kind: Kind = "probe" if probe else "single" if no_search else "search"
        of = own.kind if own else dataset or "digits"
        if all_methods:
            text = all_methods_spec(of, is_searched=not no_search, own=own)
        else:
            text = starter_spec(of, method, kind=kind, own=own)
    if own:
        read_spec(text, text_name="the spec on these data")  # raises what does not fit
        if not Path(own.path).expanduser().exists():
            say(f"note: {own.path} is not there yet; a spec's paths are those of where it runs")
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


def _own_data(
    path: str | None,
    dataset: str | None,
    classes: int | None,
    records: int | None,
    image_size: int | None,
    encoder: str | None,
) -> OwnData | None:
    """Return what is said of data of one's own; None if nothing is."""
    said = {
        "--classes": classes,
        "--records": records,
        "--image-size": image_size,
        "--encoder": encoder,
    }
    if path is not None:
        return OwnData(path, dataset, records, classes, image_size, encoder)
    alone = [option for option, value in said.items() if value is not None]
    if alone:
        raise BadInputError(
            f"{' and '.join(alone)} describes data of yours, and none are named",
            fix="add --data-path FILE",
        )
    return None

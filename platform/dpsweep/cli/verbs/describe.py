"""The verbs ``methods`` and ``describe``: the methods, what each lets a sweep vary and trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli.base import Json, Output, say
from dpsweep.cli.completion import method_names
from dpsweep.cli.output import Format, print_records
from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.hooks import TrainsSome
from dpsweep.trainables.networks.own_models import is_own

if TYPE_CHECKING:
    from dpsweep.spec.space.hyperparameters import Hyperparameter


def methods(output: Output = Format.TABLE, as_json: Json = False) -> None:
    """List the training methods."""
    rows = [
        {
            "method": name,
            "private": method.is_private,
            "hyperparameters": len(method.hyperparameters),
            "about": (method.__doc__ or "no description").strip().splitlines()[0],
        }
        for name, method in TRAINABLES.loadable().items()
    ]
    print_records(rows, output)


def describe(
    method: Annotated[
        str,
        typer.Argument(
            help="Name of a method; see `dpsweep methods`.", autocompletion=method_names
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Count this network's parameters: timm/NAME, text/DIRECTORY, built in, or yours.",
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", min=1, help="Outputs of the classifier [1000; of text 2]."),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image-size", min=1, help="Pixels of a side; default: as timm has it."),
    ] = None,
    channels: Annotated[
        int | None, typer.Option("--channels", min=1, help="Channels of an image [3].")
    ] = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """List a method's hyperparameters; with --model, what it trains of a network."""
    if model is not None:
        _print_parameters(TRAINABLES[method], model, classes, image_size, channels, output)
        return
    flags = {"--classes": classes, "--image-size": image_size, "--channels": channels}
    for flag, value in flags.items():
        if value is not None:
            raise BadInputError(f"{flag} says nothing without --model", fix="add --model NAME")
    rows = [
        {
            "name": p.name,
            "type": p.kind,
            "default": p.default,
            "allowed": ", ".join(p.words) if p.choices else _bounds(p),
            "changes_privacy": p.changes_privacy,
            "about": p.doc,
        }
        for p in TRAINABLES[method].hyperparameters
    ]
    print_records(rows, output)


def _bounds(parameter: Hyperparameter) -> str:
    low = (
        "" if parameter.low is None else f"{'>' if parameter.open_low else '>='} {parameter.low:g}"
    )
    high = "" if parameter.high is None else f"<= {parameter.high:g}"
    return ", ".join(part for part in (low, high) if part)


def _print_parameters(
    method: Any,
    model: str,
    classes: int | None,
    image_size: int | None,
    channels: int | None,
    output: Format,
) -> None:
    """Print totals and layers: one record in JSON and YAML, the layers alone in CSV."""
    from dpsweep.trainables.networks.build import BUILT_IN

    knob = next((p for p in method.hyperparameters if p.name == "model.name"), None)
    if knob is None:
        raise BadInputError(f"{method.name} has no model.name, so it trains no network by name")
    from dpsweep.trainables.networks.parameter_table import everything, full_name, parameter_table

    if model.startswith("text/"):
        for flag, value in (("--image-size", image_size), ("--channels", channels)):
            if value is not None:
                raise BadInputError(f"{flag} says nothing of a network on text", fix="leave it out")
    name = full_name(model)
    problem = knob.problem(name)
    if problem is not None:
        raise BadInputError(f"{method.name} cannot train {model}: {problem}")
    if (name in BUILT_IN or is_own(name)) and image_size is None:
        raise BadInputError(f"the size of {name} follows from its images: add --image-size PIXELS")
    trains = method.trains if issubclass(method, TrainsSome) else everything
    table = parameter_table(name, classes, image_size, trains, channels=channels or 3)
    record = {"method": method.name, **table.to_dict()}
    if output in (Format.JSON, Format.YAML):
        print_records(record, output)
        return
    layers = record.pop("layers")
    if output is Format.CSV:
        print_records(layers, output)
        if table.note:
            say(f"note: {table.note}")
        return
    print_records({key: value for key, value in record.items() if value is not None}, output)
    print_records([{**row, "layer": row["layer"] or "(network)"} for row in layers], output)

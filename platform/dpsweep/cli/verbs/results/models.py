"""The verbs that hand a model on: into MLflow's registry, and to whoever has records for it."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from dpsweep.cli.base import Json, Name, Output, Root, say
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.verbs.results.best import CompareBy, MaxDelta, MaxEpsilon, OfMethod, limits_of
from dpsweep.cli.written import refuse_no_folder, write_file
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.words import counted
from dpsweep.results.study import load_sweep
from dpsweep.tracking.mlflow_reader import default_uri
from dpsweep.tracking.model_label import NO_CLAIM
from dpsweep.tracking.registry.loading import SCHEME, ServedModel, load_registered
from dpsweep.tracking.registry.versions import CHAMPION
from dpsweep.trainables.data.raw.files import read_files, refuse_missing

_SHOWN = 5  # classes of a table


def register(
    name: Name,
    trial: Annotated[
        int | None,
        typer.Argument(metavar="TRIAL", help="A finished trial; default: the best one."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--as", metavar="MODEL", help="Name in the registry; default: the study's."),
    ] = None,
    alias: Annotated[
        str, typer.Option("--alias", help="Alias of this version; it leaves the one that has it.")
    ] = CHAMPION,
    max_epsilon: MaxEpsilon = None,
    max_delta: MaxDelta = None,
    method: OfMethod = None,
    by: CompareBy = "trial",
    root: Root = None,
    tracking_uri: Annotated[
        str | None, typer.Option("--tracking-uri", help="MLflow store; default: the study's.")
    ] = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Put a model into MLflow's registry: raw records in, classes out, no dpsweep needed."""
    registered = _registering().register_model(
        name,
        trial,
        name=model,
        alias=alias,
        limits=limits_of(max_epsilon, max_delta, method),
        by=by,
        root=root,
        tracking_uri=tracking_uri,
    )
    whole = f"version {registered.version} of {registered.name!r}"
    if registered.is_new:
        say(f"registered: trial {registered.trial} of study {registered.study!r} is {whole}")
    else:
        say(
            f"nothing new: trial {registered.trial} of study {registered.study!r} is {whole} "
            "already, and its label is as it must be now"
        )
    if registered.moved_from is not None:
        say(f"alias {alias!r} has moved from version {registered.moved_from}")
    if output is not Format.TABLE:
        print_records(registered.to_dict(), output)
        return
    claim, alone = registered.claim, registered.alone
    cells: dict[str, Any] = {
        "model": registered.uri,
        "version": registered.version,
        "trial": registered.trial,
        "claim": NO_CLAIM if claim is None else claim.one_line(),
    }
    if claim != alone:
        cells["the trial alone"] = f"{alone.one_line()}; not the claim"
    print_records(cells, output)


def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="models:/NAME@ALIAS, models:/NAME/VERSION, or a study's name."
        ),
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help="Images, .npz, .npy, or texts in .csv, .jsonl or .txt; without any, what the "
            "model takes is said.",
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option("--trial", help="Of a study: this one; default: the best.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE.csv", help="Write all columns to a file.")
    ] = None,
    root: Root = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri",
            help="Store of a models:/; default: $MLFLOW_TRACKING_URI or sqlite:///mlflow.db.",
        ),
    ] = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Ask a model about records: its claim first, then a row for each of them."""
    if to is not None and to.suffix != ".csv":
        raise BadInputError(f"{to} does not end in .csv", fix="--to predictions.csv")
    if to is not None:  # before a model is loaded, which takes seconds
        refuse_no_folder(to)
    refuse_missing(files or [])
    served = _served(model, trial, root, tracking_uri)
    say(f"claim: {served.label['claim_in_words']}")
    if served.label.get("downgraded"):
        say(f"the claim was given up, for good: {served.label['downgraded']}")
    if not files:
        print_records(_takes(served), output)
        return
    names, records = read_files(files, served.facts)
    frame = served.predict(records)
    # What is no UTF-8 in the name of a file is escaped: pyarrow keeps no other text.
    shown = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names]
    frame.insert(0, "record", shown)
    if to is not None:
        write_file(to, frame.to_csv(index=False).encode())
        say(f"wrote {to}: {counted(len(frame), 'record')}")
        return
    columns = list(frame) if output is not Format.TABLE else _few(list(frame))
    print_records(frame[columns].to_dict("records"), output)


def _registering() -> ModuleType:
    from dpsweep.running import registering  # it loads torch

    return registering


def _served(
    model: str, trial: int | None, root: FilePath | None, tracking_uri: str | None
) -> ServedModel:
    if not model.startswith(SCHEME):
        if tracking_uri is not None:
            raise BadInputError(
                f"{model!r} names a study, whose model needs no tracking store",
                fix="models:/NAME@ALIAS, or leave --tracking-uri out",
            )
        return _registering().open_model(load_sweep(model, root=root), trial)
    if trial is not None:
        raise BadInputError(f"{model} is of one trial already", fix="leave --trial out")
    return load_registered(model, tracking_uri or default_uri())


def _takes(served: ServedModel) -> dict[str, Any]:
    """Return what a model takes and answers."""
    facts = served.facts["preparation"]
    records = {
        "array": "arrays of {raw_dtype} of shape {raw_shape}, in an .npz or .npy file",
        "image": "images of any size; the network sees {height} x {width} pixels",
        "text": "texts, of which the network reads {length} tokens at most",
    }[served.facts["kind"]]
    if "pair_column" in facts:
        records = (
            f"pairs of {records}; columns {{column!r}} and {{pair_column!r}} of a .csv or .jsonl "
            "file, 'text' and 'text_pair' from Python"
        )
    elif "column" in facts:
        records += "; column {column!r} of a .csv or .jsonl file, or the lines of a .txt file"
    return {"takes": records.format(**facts), "classes": list(served.facts["classes"])}


def _few(columns: list[str]) -> list[str]:
    """Return the columns of a table: all, or those without each class' probability if many."""
    decided = [name for name in columns if not name.startswith("probability/")]
    return columns if len(columns) - len(decided) <= _SHOWN else decided

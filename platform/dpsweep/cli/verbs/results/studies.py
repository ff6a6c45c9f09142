"""The verbs over more than one study: a list of all, a comparison of two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dpsweep.cli.base import Json, Output, Root, TrackingUri, say
from dpsweep.cli.completion import study_names
from dpsweep.cli.output import Format, print_records
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath, file_path
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import COLUMNS
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.comparison import Side, compare_studies
from dpsweep.results.tables.overview import KEYS, overview, stored_overview
from dpsweep.results.tracked.study import SCHEME, is_stored
from dpsweep.study.roots import default_root


def list_studies(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR|mlflow:URI",
            help="Folder, or tracking store (mlflow: alone: $MLFLOW_TRACKING_URI or "
            "sqlite:///mlflow.db); default: $DPSWEEP_STUDIES or studies/.",
        ),
    ] = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """List all studies of a folder or a tracking store."""
    if where is not None and is_stored(where):
        rows = stored_overview(where.removeprefix(SCHEME) or None)
        place = "this tracking store"
    else:
        folder = default_root() if where is None else file_path(where)
        rows, place = overview(folder), f"{folder}/"
    if not rows:
        say(f"no study in {place}")
        if output is Format.TABLE:
            return
    if output is not Format.TABLE:
        print_records(rows, output)
        return
    shown = [_of_table(row) for row in rows]
    caption = (
        "epsilon: what the study as a whole claims, for what stands under `released`; none: it "
        "makes no claim. trials: secret under accounting select."
    )
    print_records(shown, output, caption=caption, collapsible={*COLUMNS, "metric"})
    if where is not None and is_stored(where):
        say("note: claims are what the store's tags say; the authority is each study's ledger")


def _of_table(row: Mapping[str, Any]) -> dict[str, Any]:
    cells = {key: row[key] for key in KEYS if key != "accounting"}  # the mode is the same word
    return {**cells, "epsilon": "none" if row["epsilon"] is None else row["epsilon"]}


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Name of a study, or a spec file.", autocompletion=study_names
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.", autocompletion=study_names)],
    root: Root = None,
    tracking_uri: TrackingUri = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Show what two studies differ in, and what compares."""
    sides = [_side(name, root, tracking_uri) for name in (a, b)]
    comparison = compare_studies(*sides)
    for line in comparison.why_not:
        say(f"not comparable: {line}")
    if not comparison.why_not:
        say("comparable: the same records, score and terms")
    if output not in (Format.TABLE, Format.CSV):
        print_records(comparison.to_dict(), output)
        return
    names = [side.name for side in sides]
    if names[0] == names[1]:
        names = [f"{names[0]} (A)", f"{names[1]} (B)"]
    specs = [
        {"": each.key, **dict(zip(names, each.shown()))}
        for each in comparison.specs
        if each.key != "name"
    ]
    facts = [{"": name, names[0]: one, names[1]: other} for name, one, other in comparison.claims]
    if output is Format.CSV:
        rows = [{"part": part, "key": row[""], "a": row[names[0]], "b": row[names[1]]}
                for part, rows in (("spec", specs), ("study", facts)) for row in rows]  # fmt: skip
        print_records(rows, output)
        return
    if specs:
        print_records(specs, output)
        print()
    else:
        print("the specs differ in nothing but their names\n")
    print_records([_in_words(row) for row in facts], output)


def _in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose epsilons are rounded up, as everywhere, whatever its columns are named."""
    from_name = str(row[""])
    if not from_name.startswith("epsilon"):
        return dict(row)
    return {k: shown_epsilon(v) if isinstance(v, float) else v for k, v in row.items()}


def _side(name: str, root: FilePath | None, tracking_uri: str | None) -> Side:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise BadInputError(f"{name}: no such file", fix="a spec file, or a study's name")
        return Side(name, read_spec(path))
    result = load_sweep(name, root=root, tracking_uri=tracking_uri if is_stored(name) else None)
    return Side(name, result.spec, result)

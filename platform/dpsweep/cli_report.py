"""The verb that compares finished studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli_base import Output, Root, say
from dpsweep.errors import NothingWithinBudgetError
from dpsweep.output import Format, print_records

if TYPE_CHECKING:
    from dpsweep.report import ReportedStudy

#: What stands beside every epsilon: columns of a record, the caption of a table.
TERMS = (
    "delta",
    "accountant",
    "neighboring_relation",
    "sampling",
    "privacy_unit",
    "accounting",
    "released",
)


def report(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of studies.")],
    by: Annotated[
        str, typer.Option(help="Hyperparameters that make the rows, as in train.num_private,method")
    ] = "",
    over: Annotated[
        str, typer.Option(help="Hyperparameters that repeat a configuration, as in train.repeat")
    ] = "",
    lower: Annotated[
        str | None, typer.Option(help="Study on public records alone, for the performance boost.")
    ] = None,
    upper: Annotated[
        str | None, typer.Option(help="Study without privacy, for the performance boost.")
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Differences to the first study, per repetition.")
    ] = False,
    root: Root = None,
    output: Output = Format.TABLE,
) -> None:
    """Compare studies: best configuration per row, mean and spread over repetitions."""
    from dpsweep.report import build_report

    rows = build_report(
        [_load(name, root) for name in names],
        by=_split(by),
        over=_split(over),
        lower=None if lower is None else _load(lower, root),
        upper=None if upper is None else _load(upper, root),
        is_paired=paired,
    )
    if not rows:
        raise NothingWithinBudgetError(
            f"no finished trial in {', '.join(names)}", fix="`dpsweep status NAME` shows them"
        )
    short = sum("missing" in row for row in rows)
    if short:
        say(f"{short} of {len(rows)} rows lack repetitions; `dpsweep run SPEC` continues a study")
    if output is not Format.TABLE:
        print_records(rows, output)
        return
    dropped = set(TERMS) - set(differing_terms(rows))
    table = [{key: value for key, value in row.items() if key not in dropped} for row in rows]
    print_records(table, output, caption=caption(rows))


def _load(name: str, root: Path | None) -> ReportedStudy:
    from dpsweep.report import ReportedStudy
    from dpsweep.results import load_sweep

    return ReportedStudy.of(load_sweep(name, root=root))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def differing_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the terms in which rows of one study differ: they need columns of their own."""
    values: dict[str, dict[str, set[Any]]] = {}
    for row in rows:
        for term in TERMS:
            values.setdefault(term, {}).setdefault(row["study"], set()).add(row[term])
    return [term for term in TERMS if any(len(found) > 1 for found in values[term].values())]


def caption(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the epsilons of a table mean nothing without, once for equal terms."""
    columns = differing_terms(rows)
    studies: dict[str, dict[str, None]] = {}
    for row in rows:
        said = {term: f"see {term}" if term in columns else f"{row[term]}" for term in TERMS}
        if "delta" not in columns:
            said["delta"] = f"{row['delta']:g}"
        terms = (
            f"delta={said['delta']}, unit={said['privacy_unit']}, {said['neighboring_relation']}, "
            f"sampling={said['sampling']}, {said['accountant']}; accounting={said['accounting']}; "
            f"it covers {said['released']}"
        )
        studies.setdefault(terms, {})[row["study"]] = None
    lines = [
        f"epsilon of {', '.join(names)}: that of the costliest repetition, {terms}."
        for terms, names in studies.items()
    ]
    if any(name.startswith(("boost", "difference")) for row in rows for name in row):
        lines.append("boost and difference use other studies too, which no row's epsilon covers.")
    return "\n".join(lines)

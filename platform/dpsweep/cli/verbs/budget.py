"""The verb that shows what the studies on a dataset have cost together."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpsweep.cli.base import Json, Output
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.tables import TALK, width, wrapped
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.results.tables.budget import COMPOSITION, DatasetBudget, read_budget


def budget(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Ledger of a dataset: privacy.dataset_ledger."),
    ],
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Show what all studies on a dataset cost, and what is left."""
    account = read_budget(file)
    if output is Format.CSV:
        print_records(_lines(account), output)
    elif output is not Format.TABLE:
        print_records(account.to_dict(), output)
    else:
        _print_page(account)


def _lines(budget: DatasetBudget) -> list[dict[str, Any]]:
    """Return a line for each study, then the sum, the cap and what is left."""
    account, left = budget.account, budget.left
    sums = (
        ("sum", account.epsilon, account.delta),
        ("cap", account.cap_epsilon, account.cap_delta),
        ("left", *left),
    )
    terms = {
        "accountant": COMPOSITION,
        "neighboring_relation": ADD_OR_REMOVE_ONE,
        "privacy_unit": budget.units,
    }
    return [
        *({"line": "study", **row} for row in budget.studies),
        *({"line": n, "epsilon": epsilon, "delta": delta, **terms} for n, epsilon, delta in sums),
    ]


def _print_page(budget: DatasetBudget) -> None:
    account, left = budget.account, budget.left
    parts = [f"{key}: {value}" for key, value in budget.parts.items()]
    cap = "none" if account.cap_epsilon is None else shown_epsilon(account.cap_epsilon)
    cap_delta = "none" if account.cap_delta is None else shown_delta(account.cap_delta)
    spent = f"epsilon={shown_epsilon(account.epsilon)} at delta={shown_delta(account.delta)}"
    if account.broken is not None:
        spent += ", which is NO bound any more"
    left_delta = shown_delta(left[1], is_left=True)
    left_words = f"epsilon={shown_epsilon(left[0], is_left=True)} at delta={left_delta}"
    print_records(
        {
            "dataset": account.dataset,
            "declared by all": ", ".join(parts) or None,
            "spent": spent,
            "cap": f"epsilon={cap} at delta={cap_delta}",
            "left": left_words,
            "terms": f"unit: {budget.units}; {ADD_OR_REMOVE_ONE}; {COMPOSITION}",
        },
        Format.TABLE,
    )
    print()
    rows = [{k: v for k, v in row.items() if k != "study_id"} for row in budget.studies]
    same = {"accounting", "accountant", "neighboring_relation", "sampling", "privacy_unit", "delta"}
    print_records(rows, Format.TABLE, collapsible=same)
    columns = width(TALK)
    print("\nwhat it means:")
    for line in budget.meaning():
        print("\n".join(wrapped(f"  {line}", columns, indent="  ")))
    print("\nwhat it does not cover:")
    for line in budget.not_covered():
        print("\n".join(wrapped(f"  - {line}", columns, indent="    ")))

"""Notebooks of this project, run cell by cell in this process: no kernel is needed for that."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from import_graph import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
#: How Jupyter shows the value of a cell's last line: the first of these that it has.
_SHOWN_BY = ("_repr_html_", "_repr_png_")


@dataclass(frozen=True)
class Cell:
    """One cell of a notebook.

    Attributes:
        number: Place in the notebook, from 0.
        kind: ``markdown`` or ``code``.
        text: Its lines.
        raw: As it is stored.
    """

    number: int
    kind: str
    text: str
    raw: dict[str, Any]


def cells(path: Path) -> list[Cell]:
    """Return the cells of a notebook in order."""
    return [
        Cell(number, raw["cell_type"], "".join(raw["source"]), raw)
        for number, raw in enumerate(json.loads(path.read_text())["cells"])
    ]


def run_cells(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Run the cells of a notebook in order; return its names, and what each code cell shows.

    What a cell shows is its last line, if that is an expression: as Jupyter would draw it.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in cells(path):
        if cell.kind != "code":
            continue
        place, tree = f"{path.name}, cell {cell.number}", ast.parse(cell.text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, place, "exec"), names)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
        shown.append(drawn(value))
    return names, shown


def drawn(value: Any) -> Any:
    """Return what a notebook draws of a value."""
    for way in _SHOWN_BY:
        if hasattr(value, way):
            return getattr(value, way)()
    return value

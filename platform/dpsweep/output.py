"""Printing records as a table, JSON, YAML or CSV."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from dpsweep.errors import BadInputError

Record = Mapping[str, Any]


class Format(str, Enum):
    """How data is printed on stdout."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def print_records(
    data: Record | Sequence[Record], output: Format, *, caption: str | None = None
) -> None:
    """Print one record or a list of them on stdout.

    Infinite numbers become the word ``inf`` in tables and CSV and null in JSON and YAML, which
    have no infinity.
    """
    if output is Format.JSON:
        print(json.dumps(_finite(data), indent=2, allow_nan=False))
    elif output is Format.YAML:
        import yaml

        print(yaml.safe_dump(_finite(data), sort_keys=False), end="")
    elif output is Format.CSV:
        _print_csv([data] if isinstance(data, Mapping) else data)
    else:
        _print_table(data, caption)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _columns(rows: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _print_csv(rows: Sequence[Record]) -> None:
    writer = csv.DictWriter(sys.stdout, _columns(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _csv_cell(value) for key, value in row.items()})


def _csv_cell(value: Any) -> Any:
    return json.dumps(_finite(value)) if isinstance(value, (dict, list)) else value


def _cell(value: Any, key: str = "") -> str:
    """Return a value as text: an epsilon rounded up, other numbers to nearest."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and "epsilon" in key:
        from dpsweep.privacy.accountants import shown_epsilon

        return shown_epsilon(value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_cell(entry, key)}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(entry, key) for entry in value)
    return str(value)


def _print_table(data: Record | Sequence[Record], caption: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False)
    if isinstance(data, Mapping):
        table.show_header = False
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for key, value in data.items():
            table.add_row(Text(key), Text(_cell(value, key)))
    else:
        columns = _columns(data)
        for number, column in enumerate(columns):
            numeric = all(isinstance(row.get(column), (int, float, type(None))) for row in data)
            header = column.replace(".", ".\n").replace("/", "/\n")
            justify: Literal["left", "right"] = "right" if numeric else "left"
            # What a row is named by stays whole, so that it can be copied.
            table.add_column(header, justify=justify, overflow="fold", no_wrap=number == 0)
        for row in data:
            table.add_row(*(Text(_cell(row.get(column), column)) for column in columns))
    console.print(table)


def read_json(source: str) -> Any:
    """Read JSON from a file, or from stdin if ``source`` is ``-``.

    Raises:
        BadInputError: It cannot be read, or is no JSON.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        return json.loads(text)
    except OSError as error:
        raise BadInputError(f"{source}: {error.strerror}", fix="give an existing file") from error
    except json.JSONDecodeError as error:
        raise BadInputError(f"{source}:{error.lineno}: not JSON: {error.msg}") from error

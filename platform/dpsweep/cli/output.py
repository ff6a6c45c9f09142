"""Printing records as a table, JSON, YAML or CSV."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from dpsweep.cli.tables import TALK, lines_of_record, lines_of_table, width, wrapped
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import decimals, plain
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta

Record = Mapping[str, Any]


class Format(StrEnum):
    """How data is printed on stdout."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def print_records(
    data: Record | Sequence[Record],
    output: Format,
    *,
    caption: str | None = None,
    collapsible: Collection[str] = (),
) -> None:
    """Print one record or a list of them on stdout.

    A table has a caption below it; columns of it that are ``collapsible`` and equal in all rows
    stand in one line instead, and empty ones are left out. Infinite numbers become the word ``inf``
    in tables and CSV and null in JSON and YAML, which have no infinity.
    """
    if output is Format.JSON:
        print(json.dumps(_finite(data), indent=2, allow_nan=False))
    elif output is Format.YAML:
        import yaml

        print(yaml.safe_dump(_finite(data), sort_keys=False), end="")
    elif output is Format.CSV:
        _print_csv([data] if isinstance(data, Mapping) else data)
    else:
        _print_table(data, caption, collapsible)


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
    names = {name: plain(name) for name in _columns(rows)}
    writer = csv.DictWriter(sys.stdout, list(names.values()), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({names[key]: _csv_cell(value) for key, value in row.items()})


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return json.dumps(_finite(value))
    return plain(value) if isinstance(value, str) else value


def _cell(value: Any, key: str = "") -> str:
    """Return a value as text: what a guarantee is about rounded up, other numbers to nearest.

    >>> _cell(0.00104901, "delta"), _cell(0.49041, "noise_multiplier"), _cell(0.49041, "share")
    ('0.00104901', '0.4905', '0.4904')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and "epsilon" in key:
        return shown_epsilon(value)
    if isinstance(value, float) and "delta" in key and 0 < value < 1:
        return shown_delta(value)
    if isinstance(value, float) and key.replace(" ", "_").startswith("noise_multiplier"):
        return shown_multiplier(value)
    if isinstance(value, float):
        return decimals(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_cell(entry, key)}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(entry, key) for entry in value)
    return str(value)


def shown_multiplier(value: float) -> str:
    """Return a noise multiplier for people: rounded up, as less noise would cost more.

    >>> shown_multiplier(1.00001), shown_multiplier(2), shown_multiplier(0.000123456)
    ('1.0001', '2.0000', '0.0001235')
    """
    if not math.isfinite(value) or value <= 0:
        return decimals(value)
    exact = Decimal(repr(value))
    places = -4 if 1e-3 <= value < 1e4 else exact.adjusted() - 3
    return decimals(float(exact.quantize(Decimal(1).scaleb(places), ROUND_CEILING)))


def _print_table(
    data: Record | Sequence[Record], caption: str | None, collapsible: Collection[str]
) -> None:
    wide = width()
    if isinstance(data, Mapping):
        lines = lines_of_record({key: _cell(value, key) for key, value in data.items()}, wide)
    else:
        columns = _columns(data)
        same = {
            column: _cell(data[0][column], column)
            for column in columns
            if column in collapsible and len(data) > 1 and _is_constant(data, column)
        }
        columns = [
            column
            for number, column in enumerate(columns)
            if column not in same
            and (number == 0 or any(row.get(column) not in (None, "") for row in data))
        ]
        numbers = [column for column in columns if all(_is_number(r.get(column)) for r in data)]
        rows = [
            {name: _cell(row.get(name), name) or ("-" if name else "") for name in columns}
            for row in data
        ]
        lines = lines_of_table(columns, rows, numbers, wide)
        if same:
            cells = ", ".join(f"{name}={value}" for name, value in same.items())
            lines += wrapped(f"in all rows: {cells}", wide)
    lines += ["", *wrapped(caption, width(TALK))] if caption else []
    print("\n".join(lines))


def _is_number(value: Any) -> bool:
    """Say whether a cell is aligned to the right: a number, nothing, or a text such as 12/60."""
    if isinstance(value, str):
        return value.replace("/", "", 1).isdecimal()
    return value is None or isinstance(value, (int, float))


def _is_constant(rows: Sequence[Record], column: str) -> bool:
    return all(column in row and row[column] == rows[0].get(column) for row in rows)


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

"""Tables of the benchmarks: as data, as JSON between processes, and as Markdown in a page.

A page has each bench's tables between two lines of its own, and all else is left alone:

    <!-- bench: linear_head -->
    <!-- end -->
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import BadInputError

_END = "<!-- end -->"
_MARKER = re.compile(r"^<!-- (?:bench: (?P<name>.+?)|end) -->$", re.MULTILINE)
_BAR = re.compile(r"(?<!\\)\|")
_NUMBER = re.compile(r"\d[\d,]*\.?\d*|\.\d+")
#: Heads of columns whose figures belong to the machine.
_OF_MACHINE = re.compile(r"\b(ms|s|MiB|CPU)\b")
#: Below this a ratio says little, and how many times faster it is says more.
_SMALL = 0.1


@dataclass(frozen=True)
class Goal:
    """A limit, and whether it is held.

    Attributes:
        limit: As a reader sees it, such as ``<= 0.5x``.
        is_held: Whether the figure beside it is within.
    """

    limit: str
    is_held: bool

    def __str__(self) -> str:
        return f"{self.limit}, {'held' if self.is_held else 'missed'}"


Cell = str | Goal


@dataclass(frozen=True)
class Table:
    """A table with the sentences around it.

    Attributes:
        columns: Heads.
        rows: Cells, as many as there are columns in each.
        caption: Sentences above it: sizes, units, how it was measured.
        note: Sentences below it.
    Raises:
        BadInputError: A row is longer or shorter than the columns.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise BadInputError(
                    f"a row of {len(row)} cells in a table of {len(self.columns)} columns",
                    because=f"it begins with {row[0] if row else 'nothing'}",
                    fix="give each row a cell for each column",
                )

    def markdown(self) -> str:
        """Return caption, table and note, an empty line between two of them."""
        rule = ["---"] * len(self.columns)
        lines = [_line(row) for row in (self.columns, rule, *self.rows)]
        return "\n\n".join(part for part in (self.caption, "\n".join(lines), self.note) if part)


def _line(cells: Sequence[Cell]) -> str:
    texts = (str(cell).replace("|", "\\|") for cell in cells)
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


@dataclass(frozen=True)
class Section:
    """Tables of one bench, and the command that repeats them."""

    command: str
    tables: tuple[Table, ...]

    def markdown(self) -> str:
        """Return the tables one below the other; the command is for who writes a page."""
        return "\n\n".join(table.markdown() for table in self.tables)

    def to_json(self, figures: Mapping[str, Any]) -> str:
        """Return it in one line, with unrounded figures beside it."""
        return json.dumps({**asdict(self), "figures": figures})

    @classmethod
    def from_json(cls, text: str) -> Section:
        """Return what ``to_json`` wrote, figures left out.

        Raises:
            BadInputError: It is no section.
        """
        try:
            fields = json.loads(text)
            return cls(fields["command"], tuple(_table(table) for table in fields["tables"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInputError(
                "a bench printed no tables as its last line",
                because=f"{error!r} in {text[:80]!r}",
                fix="run it by itself with --json",
            ) from error


def _table(fields: Mapping[str, Any]) -> Table:
    rows = (
        tuple(Goal(**cell) if isinstance(cell, dict) else str(cell) for cell in row)
        for row in fields["rows"]
    )
    return Table(tuple(fields["columns"]), tuple(rows), fields["caption"], fields["note"])


def show(tables: Sequence[Table], figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the tables of this process's bench as Markdown, or with its figures as JSON."""
    arguments = [word for word in sys.argv[1:] if word != "--json"]
    script = f"python tests/benchmarks/{Path(sys.argv[0]).name}"
    section = Section(" ".join([script, *arguments]), tuple(tables))
    print(section.to_json(figures) if as_json else section.markdown())


def number(value: float) -> str:
    """Return three significant digits, and all digits of larger whole numbers.

    >>> [number(value) for value in (0.049, 41.08, 81.0, 690.5, 5636.2)]
    ['0.0490', '41.1', '81.0', '690', '5,636']
    """
    magnitude = math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{max(0, 2 - magnitude)}f}"


def times(ratio: float) -> str:
    """Return a ratio with two digits behind the point, three where it is small.

    >>> [times(ratio) for ratio in (0.0597, 0.721, 69.6)]
    ['0.060x', '0.72x', '70x']
    """
    if ratio >= 10:
        return f"{ratio:,.0f}x"
    return f"{ratio:.3f}x" if ratio < _SMALL else f"{ratio:.2f}x"


def faster(ratio: float) -> str:
    """Return a ratio of times, and how many times faster that is where it is small.

    >>> faster(0.0597), faster(0.72)
    ('0.060x (17 times faster)', '0.72x')
    """
    return times(ratio) + (f" ({1 / ratio:.0f} times faster)" if ratio < _SMALL else "")


def at_most(limit: float, ratio: float) -> Goal:
    """Return the goal of a ratio that shall be small.

    >>> str(at_most(1 / 11, 0.093)), str(at_most(1.15, 1.07))
    ('<= 0.091x, missed', '<= 1.15x, held')
    """
    return Goal(f"<= {limit:.{2 if limit < 1 else 3}g}x", ratio <= limit)


def compared(
    values: Mapping[str, float], own: str, goals: Mapping[str, float | None], *, is_time: bool
) -> dict[str, tuple[Cell, Cell, Cell]]:
    """Return for each variant: its value, which part of it ``own`` takes, and the goal of that.

    Args:
        values: Milliseconds, or MiB, by variant.
        own: The variant that the others are compared with.
        goals: Largest ratio by variant; one may be lacking.
        is_time: Whether a small ratio means faster.
    """
    cells: dict[str, tuple[Cell, Cell, Cell]] = {}
    for name, value in values.items():
        ratio, limit = values[own] / value, goals.get(name)
        goal: Cell = "" if limit is None else at_most(limit, ratio)
        text = "1" if name == own else (faster(ratio) if is_time else times(ratio))
        cells[name] = (number(value), text, goal)
    return cells


def clock(device: str, rounds: int) -> str:
    """Return how a time was measured, for a caption."""
    kind = "CPU time on one thread" if device == "cpu" else f"wall time on {device}"
    turns = f"median of {rounds} rounds" if rounds > 1 else "one round"
    return f"{kind}, {turns}, variants in turn in one process"


def block(page: str, name: str, *, title: str) -> slice:
    """Return where a bench's tables stand in a page, between its markers.

    Args:
        page: Text of the page.
        name: Of the bench.
        title: Name of the page, for errors.
    Raises:
        BadInputError: The markers are missing, are there twice, or have no end.
    """
    markers = list(_MARKER.finditer(page))
    at = [place for place, marker in enumerate(markers) if marker["name"] == name]
    if not at:
        raise BadInputError(
            f"{title} has no place for the tables of {name}",
            fix=f"put the lines `<!-- bench: {name} -->` and `{_END}` where they belong, "
            "or write to another page with --out",
        )
    if len(at) > 1:
        lines = ", ".join(str(page.count("\n", 0, markers[place].start()) + 1) for place in at)
        raise BadInputError(
            f"{title} has {len(at)} places for the tables of {name}",
            because=f"`<!-- bench: {name} -->` is on lines {lines}",
            fix="leave one",
        )
    begin, *rest = markers[at[0] :]
    if not rest or rest[0]["name"] is not None:
        line = page.count("\n", 0, begin.start()) + 1
        raise BadInputError(
            f"the tables of {name} have no end in {title}",
            because=f"no `{_END}` comes before the next marker behind line {line}",
            fix=f"put the line `{_END}` behind them",
        )
    return slice(begin.end(), rest[0].start())


def replaced(page: str, name: str, text: str, *, title: str) -> str:
    """Return a page with a bench's tables in the place of what stood between its markers.

    Raises:
        BadInputError: As ``block``.
    """
    place = block(page, name, title=title)
    return f"{page[: place.start]}\n\n{text}\n\n{page[place.stop :]}"


def differences(old: str, new: Sequence[Table], *, tolerance: float) -> list[str]:
    """Return a line for each cell of a page's tables that is not what was measured now.

    Seconds and memory are the machine's and are not compared. Other numbers differ by more than a
    share ``tolerance``, goals by held or missed; a row or a column that only one of both has is a
    line, too.
    """
    rows = _rows(old)
    lines = []
    for table in new:
        for row in table.rows:
            label = str(row[0])
            heads, before = rows.pop((table.columns[0], label), ((), ()))
            if not before:
                lines.append(f"{label}: not in the page")
            elif heads != table.columns:
                lines.append(f"{label}: other columns in the page")
            else:
                lines += [
                    f"{label}, {head}: {old_cell or 'nothing'}, now {str(cell) or 'nothing'}"
                    for head, old_cell, cell in zip(heads, before, row)
                    if not _OF_MACHINE.search(head) and _differs(old_cell, str(cell), tolerance)
                ]
    return lines + [f"{label}: in the page alone" for _, label in rows]


def _rows(text: str) -> dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return (first head, first cell) -> (heads, cells) of each row of all tables of a text."""
    rows: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {}
    heads: tuple[str, ...] = ()
    for line in text.splitlines():
        if not line.startswith("|"):
            heads = ()
            continue
        cells = tuple(cell.strip().replace("\\|", "|") for cell in _BAR.split(line)[1:-1])
        if not heads:
            heads = cells
        elif set("".join(cells)) != {"-"}:
            rows[heads[0], cells[0]] = heads, cells
    return rows


def _differs(old: str, new: str, tolerance: float) -> bool:
    before, now = (
        [float(word.replace(",", "")) for word in _NUMBER.findall(t)] for t in (old, new)
    )
    if len(before) != len(now) or ("missed" in old) != ("missed" in new):
        return True
    return any(abs(b - a) > tolerance * abs(a) for a, b in zip(before, now))

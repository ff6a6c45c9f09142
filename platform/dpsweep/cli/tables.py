"""Tables for people: no word is broken, whatever the width; what does not fit beside goes below.

A table that is wider than the terminal is printed in blocks, one below the other, each with the
columns that rows are named by. Texts and headers wrap between words; a header breaks behind ``.``
or ``/`` only where the whole of it is wider than a block may be.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpsweep.foundation.words import plain

WIDTH = 160  # of tables, where no terminal says how wide it is
TALK = 80  # of sentences, likewise
_GAP = 2
_TEXT = 28  # a column of texts is not narrower, unless its longest text is
_HEADER_PIECES = re.compile(r"[^./ ]+[./]*|[./]+")
_COPIED = re.compile(r"`[^`\n]*`")
_BLANK = "\0"  # in the place of a blank that no line may end at
_STAGE = re.compile(r" *[\d.]+ s  | {9}(?=\S)")
_LABEL = re.compile(r" *(because|fix|note): ")
_SHORT = {"validation/": "val/"}


def width(unknown: int = WIDTH) -> int:
    """Return the columns to print in: ``COLUMNS``, or those of the terminal that is there."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    for stream in (sys.stdout, sys.stderr):  # of `dpsweep status NAME | less` stderr knows it
        try:
            return os.get_terminal_size(stream.fileno()).columns or unknown
        except (OSError, ValueError, AttributeError):
            continue
    return unknown


def wrapped(text: str, columns: int, *, indent: str = "") -> list[str]:
    """Return a text as lines that break between words; a longer word stays whole.

    As in all that is printed here, what a terminal would obey is written out (``plain``).

    >>> wrapped("at delta 1e-05, add_or_remove_one", 15, indent="  ")
    ['at delta 1e-05,', '  add_or_remove_one']
    """
    return _wrapped(plain(text), columns, indent)


def _wrapped(text: str, columns: int, indent: str) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        lines += textwrap.wrap(
            line,
            max(columns, 1),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        ) or [""]
    return lines


def talk(text: str, columns: int) -> list[str]:
    """Return sentences as lines, each of which goes on with a hanging indent.

    What stands between backticks is to be copied, and stays on one line where it fits on one. So
    does a line that begins with a blank, unless it is of an error or tells a stage.

    >>> talk("note: a long day\\n  fix: run `make it` today", 17)
    ['note: a long day', '  fix: run', '      `make it`', '      today']
    """
    lines: list[str] = []
    for line in plain(text).split("\n"):
        stage = _STAGE.match(line)
        if line.startswith(" ") and not stage and not _LABEL.match(line):
            lines.append(line)
            continue
        hanging = stage.end() if stage else len(line) - len(line.lstrip()) + 4

        def whole(found: re.Match[str], most: int = columns - hanging) -> str:
            return found[0].replace(" ", _BLANK) if len(found[0]) <= most else found[0]

        broken = _wrapped(_COPIED.sub(whole, line), columns, " " * hanging)
        lines += [part.replace(_BLANK, " ") for part in broken]
    return lines


@dataclass(frozen=True)
class _Column:
    """One column: its header in pieces that may stand below each other, its cells as texts.

    The pieces are words; where those are wider than ``most_columns``, the parts of a dotted name.
    """

    name: str
    pieces: tuple[str, ...]
    cells: tuple[str, ...]
    is_number: bool

    @classmethod
    def of(
        cls, name: str, rows: Sequence[Mapping[str, str]], is_number: bool, most_columns: int
    ) -> _Column:
        shown = plain(name)
        for long, short in _SHORT.items():
            shown = shown.replace(long, short)
        cells = tuple(plain(row.get(name, "")) for row in rows)
        pieces = shown.split()
        if max(map(len, pieces), default=0) > most_columns:
            pieces = _HEADER_PIECES.findall(shown)
        return cls(name, tuple(pieces), cells, is_number)

    @property
    def least(self) -> int:
        """Columns below which a word would break, or a text become a tower of words."""
        words = [word for cell in self.cells for word in cell.split()]
        longest = max((len(line) for cell in self.cells for line in cell.split("\n")), default=0)
        return max(map(len, (*self.pieces, *words, " " * min(longest, _TEXT))), default=0)

    @property
    def most(self) -> int:
        """Columns in which every cell stands on one line."""
        lines = [line for cell in self.cells for line in cell.split("\n")]
        return max(map(len, (*self.pieces, *lines)), default=0)

    @property
    def titled(self) -> int:
        """Columns in which the header, too, stands on one line."""
        return max(self.most, len(self.header(1 << 16)[0]))

    def header(self, columns: int) -> list[str]:
        """Return the header in lines of at most ``columns``."""
        lines = [""]
        for piece in self.pieces:
            space = " " if lines[-1] and lines[-1][-1] not in "./" else ""
            if len(lines[-1]) + len(space) + len(piece) <= columns:
                lines[-1] += space + piece
            else:
                lines.append(piece)
        return lines


def lines_of_table(
    columns: Sequence[str], rows: Sequence[Mapping[str, str]], numbers: Sequence[str], wide: int
) -> list[str]:
    """Return a table as lines of at most ``wide`` columns, unless one word is longer than that.

    Args:
        columns: Names of the columns, in order. Rows are named by the first one that has a name
            (and by nameless ones before it): it stands in every block.
        rows: Texts of the cells, by column.
        numbers: Columns that are aligned to the right.
        wide: Columns of the terminal.
    """
    if not columns:
        return []
    first = next((index for index, name in enumerate(columns) if name), 0) + 1
    keys = [_Column.of(name, rows, name in numbers, wide) for name in columns[:first]]
    beside = wide - sum(column.least + _GAP for column in keys)
    rest = [_Column.of(name, rows, name in numbers, beside) for name in columns[first:]]
    blocks: list[list[_Column]] = [list(keys)]
    for column in rest:
        block = [*blocks[-1], column]
        is_narrow = sum(c.least for c in block) + _GAP * (len(block) - 1) <= wide
        if is_narrow or len(blocks[-1]) == len(keys):
            blocks[-1] = block
        else:
            blocks.append([*keys, column])
    lines: list[str] = []
    for block in blocks:
        lines += ([""] if lines else []) + _block(block, len(rows), wide)
    return lines


def _block(block: Sequence[_Column], num_rows: int, wide: int) -> list[str]:
    widths = [column.least for column in block]
    left = wide - sum(widths) - _GAP * (len(block) - 1)
    for wanted in ([column.most for column in block], [column.titled for column in block]):
        for index in sorted(range(len(block)), key=lambda i: wanted[i] - widths[i]):
            more = min(max(left, 0), max(wanted[index] - widths[index], 0))
            widths[index] += more
            left -= more
    headers = [column.header(size) for column, size in zip(block, widths)]
    height = max(map(len, headers))
    lines = [
        _line(block, widths, [([""] * (height - len(h)) + h)[row] for h in headers])
        for row in range(height)
    ]
    lines.append("-" * (sum(widths) + _GAP * (len(block) - 1)))
    for row in range(num_rows):
        cells = [wrapped(column.cells[row], size) for column, size in zip(block, widths)]
        height = max(map(len, cells))
        lines += [
            _line(block, widths, [(cell + [""] * (height - len(cell)))[part] for cell in cells])
            for part in range(height)
        ]
    return lines


def _line(block: Sequence[_Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    texts = [
        cell.rjust(size) if column.is_number else cell.ljust(size)
        for column, size, cell in zip(block, widths, cells)
    ]
    return (" " * _GAP).join(texts).rstrip()


def lines_of_record(record: Mapping[str, str], wide: int) -> list[str]:
    """Return one record as lines: names, and beside them values that wrap between words.

    >>> lines_of_record({"trials": "24", "time": "roughly a minute on two slots"}, 30)
    ['trials  24', 'time    roughly a minute on', '        two slots']
    """
    names = {plain(name): value for name, value in record.items()}
    size = max(map(len, names), default=0) + _GAP
    lines: list[str] = []
    for name, value in names.items():
        for number, line in enumerate(wrapped(value, max(wide - size, _TEXT // 2), indent="")):
            lines.append(((name if number == 0 else "").ljust(size) + line).rstrip())
    return lines

"""Numbers in sentences, and texts that somebody else may have written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

# What a terminal obeys: control characters but for tab and newline, and what turns the direction of
# writing, marks of a direction too. Halves of surrogates cannot be written at all.
_OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def listed(words: Sequence[str], most: int) -> str:
    """Return words with commas between, and how many there are beyond ``most`` of them.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def numbers(them: Iterable[int]) -> str:
    """Return numbers, ascending; of five or more in a row, the first and the last.

    >>> numbers([3, 0, 1, 7, 8, 9]), numbers([*range(750, 1004), 2, 5])
    ('0, 1, 3, 7, 8, 9', '2, 5, 750 to 1003')
    """
    words: list[str] = []
    for _, group in groupby(enumerate(sorted(them)), lambda pair: pair[1] - pair[0]):
        row = [number for _, number in group]
        words += [f"{row[0]} to {row[-1]}"] if len(row) >= 5 else map(str, row)
    return ", ".join(words)


def plain(text: str) -> str:
    r"""Return a text with what a terminal would obey written out.

    >>> plain("red\x1b[31m"), plain("two\nlines"), plain("txt.\u202eexe")
    ('red\\x1b[31m', 'two\nlines', 'txt.\\u202eexe')
    """
    return _OBEYED.sub(_written, text)


def encodable(text: str) -> str:
    """Return a text with halves of surrogates, which no file can hold, written out.

    >>> encodable("a\\udc80") == "a" + chr(92) + "udc80"
    True
    """
    return text.encode(errors="backslashreplace").decode()


def _written(sign: re.Match[str]) -> str:
    number = ord(sign[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def exact(value: float | None) -> str:
    """Return all digits of a number, the few that most have; ``null`` for none.

    >>> exact(2.0), exact(2.0000049), exact(1e-05)
    ('2', '2.0000049', '1e-05')
    """
    if value is None:
        return "null"
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def decimals(value: float) -> str:
    """Return a score or another measured number with four decimals, which line up in a column.

    What is tiny or large has four digits.

    >>> decimals(0.39), decimals(12.0), decimals(0.00012345), decimals(123456.0)
    ('0.3900', '12.0000', '0.0001234', '1.235e+05')
    """
    return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.4f}"


def counted(number: float, noun: str) -> str:
    """Return a number of things: one is no plural.

    >>> counted(1, "trial"), counted(0, "study"), counted(2.5, "class")
    ('1 trial', '0 studies', '2.5 classes')
    """
    shown = f"{number:g}" if isinstance(number, float) else f"{number}"
    if number == 1:
        return f"{shown} {noun}"
    if noun.endswith("y"):
        return f"{shown} {noun[:-1]}ies"
    return f"{shown} {noun}{'es' if noun.endswith('s') else 's'}"


def were(number: int, noun: str) -> str:
    """Return a number of things and their verb.

    >>> were(1, "step"), were(2, "step")
    ('1 step was', '2 steps were')
    """
    return f"{counted(number, noun)} {'was' if number == 1 else 'were'}"

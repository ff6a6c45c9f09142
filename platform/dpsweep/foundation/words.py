"""Numbers in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def listed(words: Sequence[str], most: int) -> str:
    """Return words with commas between, and how many there are beyond ``most`` of them.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


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

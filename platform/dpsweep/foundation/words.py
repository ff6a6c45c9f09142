"""Numbers in sentences."""

from __future__ import annotations


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

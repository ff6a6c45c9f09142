"""Range checks with one wording: every refused value is named, shown and told its range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean


def of_kind(says: str, value: object, kind: type | tuple[type, ...], fix: str) -> None:
    """Refuse a value of another type than one that a sentence says.

    >>> of_kind("a study is opened by its name", None, str, fix="load_sweep(name)")
    Traceback (most recent call last):
    dpsweep.foundation.errors.BadInputError: a study is opened by its name, and this is None
      fix: load_sweep(name)
    """
    if isinstance(value, kind):
        return
    name = type(value).__name__
    shown = "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    raise BadInputError(f"{says}, and this is {shown}", fix=fix)


def integer(says: str, value: Any, fix: str) -> int:
    """Return a whole number of any type, NumPy's too, as an int; a boolean is none.

    >>> integer("a trial is named by its number", 1, fix="result.trial(0)")
    1
    """
    of_kind(says, value, () if isinstance(value, bool) else Integral, fix)
    return int(value)


def number(name: str, value: Any) -> float:
    """Return ``value`` as a float; booleans, words, NaN and infinities are refused.

    >>> number("delta", 1)
    1.0
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise BadInputError(f"{name} must be a number, got {value!r}")
    try:
        converted = float(value)
    except (OverflowError, TypeError, ValueError):
        raise BadInputError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(converted):
        raise BadInputError(f"{name} must be finite, got {value!r}")
    return converted


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a float > 0.

    >>> positive("scale", 0)
    Traceback (most recent call last):
    dpsweep.foundation.errors.BadInputError: scale must be > 0, got 0
    """
    converted = number(name, value)
    if converted <= 0:
        raise BadInputError(f"{name} must be > 0, got {value!r}")
    return converted


def non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a float >= 0."""
    converted = number(name, value)
    if converted < 0:
        raise BadInputError(f"{name} must be >= 0, got {value!r}")
    return converted


def at_least(name: str, value: Any, low: float) -> float:
    """Return ``value`` as a float >= ``low``."""
    converted = number(name, value)
    if converted < low:
        raise BadInputError(f"{name} must be >= {low:g}, got {value!r}")
    return converted


def in_unit_interval(name: str, value: Any, *, zero: bool = False, one: bool = False) -> float:
    """Return ``value`` as a float strictly between 0 and 1, ends included where asked for.

    >>> in_unit_interval("sample_rate", 1, one=True)
    1.0
    >>> in_unit_interval("delta", 1)
    Traceback (most recent call last):
    dpsweep.foundation.errors.BadInputError: delta must be in (0, 1), got 1
    """
    converted = number(name, value)
    inside = (0 < converted < 1) or (zero and converted == 0) or (one and converted == 1)
    if not inside:
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise BadInputError(f"{name} must be in {interval}, got {value!r}")
    return converted


def whole(name: str, value: Any, *, low: int = 0) -> int:
    """Return ``value`` as an int >= ``low``; an integral float is accepted.

    >>> whole("steps", 3.0, low=1)
    3
    """
    converted = number(name, value)
    if converted != int(converted):
        raise BadInputError(f"{name} must be a whole number, got {value!r}")
    if converted < low:
        raise BadInputError(f"{name} must be >= {low}, got {value!r}")
    # Not int(converted): a float would round integers over 2**53.
    return int(value)


def one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of the allowed words.

    >>> one_of("mode", "mix", ("min", "max"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dpsweep.foundation.errors.BadInputError: mode must be one of min, max; got 'mix' (did you ...?)
    """
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(value, list(allowed)) if isinstance(value, str) else ""
        raise BadInputError(
            f"{name} must be one of {', '.join(allowed)}; got {value!r}"
            + (f" ({hint})" if hint else "")
        )
    return value

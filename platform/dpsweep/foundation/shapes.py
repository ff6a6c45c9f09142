"""Shapes of plain data: whether what a file holds is of the types that were written there.

A checksum tells a flipped bit, not a record that somebody has written anew. What does not have its
shape is refused where it is read, so that nobody computes with it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Union, get_args, get_origin

#: Whole numbers are counts, positions and moments: none is negative, or needs more bits.
MOST = 2**53


def fits(value: Any, shape: Any) -> bool:
    """Say whether plain data has the shape of a type hint.

    A float is any finite number, an int a whole one from 0 to ``MOST``; true is no number.

    >>> fits({"loss": 1}, Mapping[str, float]), fits([1, None], Sequence[int]), fits(True, int)
    (True, False, False)
    >>> fits(-1, int), fits(2**53, int), fits(2**53 + 1, int), fits(float("nan"), float)
    (False, True, False, False)

    Args:
        value: As ``json`` gives it.
        shape: Made of int, float, str, bool, None, Any, Mapping, Sequence and unions.
    """
    return check_of(shape)(value)


@cache
def check_of(shape: Any) -> Callable[[Any], bool]:
    """Return what says of plain data whether it has a shape, for whoever asks of many."""
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        options = [check_of(option) for option in inner]
        return lambda value: any(fits_one(value) for fits_one in options)
    if shape in (None, type(None)):
        return lambda value: value is None
    if (origin or shape) is Mapping:
        keys, values = map(check_of, inner or (Any, Any))
        return lambda value: (
            isinstance(value, Mapping)
            and all(keys(key) and values(part) for key, part in value.items())
        )
    if (origin or shape) is Sequence:
        parts = check_of(*(inner or (Any,)))
        return lambda value: (
            isinstance(value, Sequence) and not isinstance(value, str) and all(map(parts, value))
        )
    return partial(_is_scalar, shape)


def _is_scalar(shape: Any, value: Any) -> bool:
    if shape is bool or isinstance(value, bool):
        return shape is bool and isinstance(value, bool)
    if shape is int:
        return isinstance(value, int) and 0 <= value <= MOST
    if shape is float:
        is_number = isinstance(value, (int, float))
        return is_number and (
            abs(value) <= MOST if isinstance(value, int) else math.isfinite(value)
        )
    return isinstance(value, shape)

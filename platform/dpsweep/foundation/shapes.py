"""Shapes of plain data: whether what a file holds is of the types that were written there.

A checksum tells a flipped bit, not a record that somebody has written anew. What does not have its
shape is refused where it is read, so that nobody computes with it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
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
    origin, inner = get_origin(shape), get_args(shape)
    if shape is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if shape in (None, type(None)):
        return value is None
    if (origin or shape) is Mapping:
        keys, values = inner or (Any, Any)
        return isinstance(value, Mapping) and all(
            fits(key, keys) and fits(part, values) for key, part in value.items()
        )
    if (origin or shape) is Sequence:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(fits(part, *(inner or (Any,))) for part in value)
    return _is_scalar(value, shape)


def _is_scalar(value: Any, shape: Any) -> bool:
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

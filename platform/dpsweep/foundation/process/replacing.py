"""Attributes of other libraries, replaced for a time where they have no switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Give something other attributes for a time; those that it does not have are left out."""
    before = {name: getattr(owner, name) for name in values if hasattr(owner, name)}
    for name in before:
        setattr(owner, name, values[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)

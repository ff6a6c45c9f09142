"""Lazy tables: a name stands for ``module:attribute``, imported on first use."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from dpsweep.foundation.errors import BadInputError


def did_you_mean(word: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """Return ``did you mean 'x'?`` for the closest known word, or an empty string.

    >>> did_you_mean("dp_sdg", ["dp_sgd", "adamix"])
    "did you mean 'dp_sgd'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


class Registry(Mapping[str, Any]):
    """A read-only mapping from names to objects that are imported when they are asked for.

    Packages outside this one extend a table through the entry point group it names.

    >>> Registry("things", {"join": "posixpath:join"})["join"]("a", "b")
    'a/b'
    """

    def __init__(self, kind: str, table: Mapping[str, str], *, group: str | None = None) -> None:
        self.kind = kind
        self._table = dict(sorted(table.items()))
        self._group = group
        self._extended = group is None

    def _extend(self) -> None:
        if not self._extended and self._group is not None:
            for point in entry_points(group=self._group):
                self._table.setdefault(point.name, point.value)
            self._extended = True

    def __getitem__(self, name: str) -> Any:
        if name not in self._table:
            self._extend()
        if name not in self._table:
            hint = did_you_mean(name, list(self._table))
            raise BadInputError(
                f"unknown {self.kind} {name!r}",
                fix=(hint + " " if hint else "") + f"known: {', '.join(self._table)}",
            )
        module, _, attribute = self._table[name].partition(":")
        return getattr(import_module(module), attribute)

    def __contains__(self, name: object) -> bool:
        self._extend()
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        self._extend()
        return iter(self._table)

    def __len__(self) -> int:
        self._extend()
        return len(self._table)

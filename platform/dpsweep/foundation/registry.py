"""Lazy tables: a name stands for ``module:attribute``, imported on first use."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from importlib.metadata import EntryPoint
from typing import Any

from dpsweep.foundation.errors import BadInputError

#: Likeness from which a word is taken for a known one with a slip of the pen.
_SLIP = 0.81


def did_you_mean(word: str, known: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    """Return ``did you mean 'x'?`` for the closest known word, or an empty string.

    >>> did_you_mean("dp_sdg", ["dp_sgd", "adamix"])
    "did you mean 'dp_sgd'?"
    """
    words = list(known)
    alike = [each for each in words if each.lower() == word.lower()]
    close = alike or difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages add to an entry point group, by name; imports nothing.

    >>> installed("dpsweep.no_such_group")
    {}
    """
    return {point.name: point for point in sorted(metadata.entry_points(group=group))}


def of_a_package(word: str, known: Sequence[str]) -> str:
    """Return that a package may have brought a word that is not known here, with its semicolon.

    Empty where the word is a known one but for a slip of the pen.

    >>> of_a_package("my_sgd", ["dp_sgd"])
    '; one that a package brings is known where that package is installed'
    >>> of_a_package("dp_sdg", ["dp_sgd"])
    ''
    """
    if difflib.get_close_matches(word, known, n=1, cutoff=_SLIP):
        return ""
    return "; one that a package brings is known where that package is installed"


def package_of(point: EntryPoint) -> str:
    """Return the name and version of the package that an entry point belongs to."""
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


class Registry(Mapping[str, Any]):
    """A read-only mapping from names to objects that are imported when they are asked for.

    Packages outside this one extend a table through the entry point group it names; they cannot
    replace a name of it. One that does not load breaks what asks for it by name, and nothing else:
    to go through all of a table, ask ``loadable`` and not ``items``.

    >>> Registry("things", {"join": "posixpath:join"})["join"]("a", "b")
    'a/b'

    Args:
        kind: A thing of the table, as an error calls it.
        table: Name -> ``module:attribute``.
        group: Entry point group that extends it.
        needs: Attributes that a thing of another package must have.
        check: ``module:function`` that raises at a thing of another package that is not as it
            should be; imported when there is one.
    """

    def __init__(
        self,
        kind: str,
        table: Mapping[str, str],
        *,
        group: str | None = None,
        needs: tuple[str, ...] = (),
        check: str | None = None,
    ) -> None:
        self.kind = kind
        self._needs, self._check = needs, check
        self._table = dict(sorted(table.items()))
        self.group = group
        self._outside: dict[str, EntryPoint] | None = None

    def outside(self) -> dict[str, EntryPoint]:
        """Return what installed packages add, by name; imports nothing."""
        if self._outside is None:
            points = {} if self.group is None else installed(self.group)
            self._outside = {name: p for name, p in points.items() if name not in self._table}
        return self._outside

    def __getitem__(self, name: str) -> Any:
        if name in self._table:
            return _at(self._table[name])
        point = self.outside().get(name)
        if point is None:
            names = list(self)
            hint = did_you_mean(name, names)
            brought = "" if self.group is None else of_a_package(name, names)
            raise BadInputError(
                f"unknown {self.kind} {name!r}",
                fix=(hint + " " if hint else "") + f"known: {', '.join(names)}{brought}",
            )
        try:
            thing = point.load()
            lacking = [attribute for attribute in self._needs if not hasattr(thing, attribute)]
            if inspect.isabstract(thing):  # none of it could be made, when its trial begins
                lacking += sorted(thing.__abstractmethods__)
            if lacking:
                raise AttributeError(f"{point.value} has no {', '.join(lacking)}")
            if self._check is not None:
                _at(self._check)(thing)
        except Exception as error:  # importing a package runs whatever it holds
            raise BadInputError(
                f"{self.kind} {name!r} of {package_of(point)} cannot be loaded",
                because=f"{type(error).__name__}: {error}",
                fix="install that package again, or ask its authors",
            ) from error
        return thing

    def broken(self) -> dict[str, BadInputError]:
        """Return what packages add and does not load: name -> why; loads all of it."""
        errors = {}
        for name in self.outside():
            try:
                self[name]
            except BadInputError as error:
                errors[name] = error
        return errors

    def loadable(self) -> dict[str, Any]:
        """Return everything but what does not load, by name."""
        broken = self.broken()
        return {name: self[name] for name in self if name not in broken}

    def __contains__(self, name: object) -> bool:
        return name in self._table or name in self.outside()

    def __iter__(self) -> Iterator[str]:
        return iter([*self._table, *self.outside()])

    def __len__(self) -> int:
        return len(self._table) + len(self.outside())


def _at(place: str) -> Any:
    """Return what lies at ``module:attribute``."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)

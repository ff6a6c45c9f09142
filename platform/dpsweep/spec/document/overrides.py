"""Values that ``--set`` and ``overrides`` put into a spec, before anything is checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpsweep.foundation.errors import Mistake, SpecError
from dpsweep.foundation.validate import of_kind
from dpsweep.spec.document.reading import Document, parse_scalar


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a raw spec with ``section.key=value`` applied, each value read as YAML.

    Everything after ``search.space.`` is one name, and null leaves it out of the space:
    ``search.space.optim.lr=0.5``, ``search.space.optim.lr=null``. So it is after
    ``start.hyperparameters.``.

    Raises:
        SpecError: An override has no ``=``, an empty key, or leads through a value.

    >>> apply_overrides({"privacy": {"delta": 1e-5}}, ["privacy.trial_epsilon=3"])
    {'privacy': {'delta': 1e-05, 'trial_epsilon': 3}}
    """
    result = copy.deepcopy(dict(raw))
    mistakes = []
    for text in overrides:
        try:
            _apply(result, text)
        except SpecError as error:
            mistakes += list(error.mistakes)
    if mistakes:
        raise SpecError(mistakes)
    return result


def _apply(raw: dict[str, Any], text: str) -> None:
    where = f"--set {text}"
    key, equals, value_text = text.partition("=")
    path = _split(key.strip())
    if not equals or not all(path):
        raise SpecError(
            [Mistake(where, "is not KEY=VALUE", "for instance --set privacy.trial_epsilon=3")]
        )
    try:
        value = parse_scalar(value_text)
    except SpecError as error:
        problem = error.mistakes[0].what
        raise SpecError([Mistake(where, f"the value {value_text!r} {problem}")]) from None
    here = raw
    for number, part in enumerate(path[:-1]):
        if here.get(part) is None:
            here[part] = {}
        if not isinstance(here[part], dict):
            above = ".".join(path[: number + 1])
            raise SpecError([Mistake(where, f"{above} is a value, it has no keys below it")])
        here = here[part]
    if value is None and ".".join(path[:2]) in _OF_NAMES and len(path) > 2:
        here.pop(path[-1], None)
    else:
        here[path[-1]] = value


#: Sections whose keys are dotted names of hyperparameters.
_OF_NAMES = ("search.space", "start.hyperparameters")


def _split(key: str) -> list[str]:
    for section in _OF_NAMES:
        if key.startswith(f"{section}."):
            return [*section.split("."), key[len(section) + 1 :]]
    return key.split(".")


def override(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with overrides applied; their mistakes show ``--set`` for file and line.

    Raises:
        SpecError: See ``apply_overrides``.
        BadInputError: ``overrides`` is no list of texts.
    """
    fix = 'overrides=["privacy.trial_epsilon=3"]'
    of_kind("overrides are a list of KEY=VALUE", overrides, (list, tuple), fix)
    for each in overrides:
        of_kind("an override is a text KEY=VALUE", each, str, fix)
    if not overrides:
        return document
    value = apply_overrides(document.value, overrides)
    keys = tuple(text.partition("=")[0].strip() for text in overrides)
    return replace(document, value=value, overridden=keys)

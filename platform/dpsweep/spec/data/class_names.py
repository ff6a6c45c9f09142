"""Names that a spec gives the classes or attributes of its dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.words import counted
from dpsweep.spec.base import peek_word, seen

#: A name of an attribute is part of the name of a metric.
_METRIC_NAME = re.compile(r"[A-Za-z0-9_. -]+")
#: MLflow takes names of 250 characters, and of no folder itself or the one above it.
_LONGEST = 250 - len("curve/validation/accuracy/")
_FOLDERS = (".", "..")
_NO_METRIC = "with which MLflow takes no metric"


def _class_names(value: Any) -> Any:
    """Return names of classes: two or more, each once."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be a list of names, got {seen(value)}")
    wrong = [name for name in value if not isinstance(name, str) or not name.strip()]
    if wrong:
        quoted = "" if isinstance(wrong[0], str) else f'; put it in quotes: "{seen(wrong[0])}"'
        raise ValueError(f"has a name that is no text: {seen(wrong[0])}{quoted}")
    names = tuple(name.strip() for name in value)
    if len(names) < 2:
        raise ValueError(f"must name at least two classes, got {seen(list(value))}")
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise ValueError(f"has the name {seen(twice[0])} twice")
    return names


def _attributes(value: Any) -> Any:
    """Return names of attributes: one or more, each once."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"must be a list of names, got {seen(value)}")
    wrong = [name for name in value if not isinstance(name, str) or not name.strip()]
    if wrong:
        raise ValueError(f"has a name that is no text: {seen(wrong[0])}")
    twice = [name for index, name in enumerate(value) if name in value[:index]]
    if twice:
        raise ValueError(f"has the name {seen(twice[0])} twice")
    return tuple(value)


Attributes = Annotated[
    tuple[str, ...],
    BeforeValidator(_attributes),
    WithJsonSchema(
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}
    ),
]


def attribute_rules(raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield what is wrong about task and ``attributes`` of a raw section ``data`` of attributes."""
    task, names = peek_word(raw, "task", default="classification"), raw.get("attributes")
    count = len(names) if isinstance(names, (list, tuple)) else 0
    if task == "classification" and count != 1:
        yield Mistake(
            "task",
            "classification is of one attribute, and "
            + ("data.attributes names none" if not count else f"data.attributes names {count}"),
            "set task: multi_label, or name one: attributes: [Smiling]",
        )
    if task == "multi_label" and count == 1:
        problem = "names one attribute, and multi_label is of several"
        yield Mistake("attributes", problem, "set task: classification, or name more")


ClassNames = Annotated[
    tuple[str, ...],
    BeforeValidator(_class_names),
    WithJsonSchema(
        {"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True}
    ),
]


def metric_problem(name: str) -> tuple[str, str]:
    """Return why MLflow takes no metric that is named after an attribute, and how to fix it.

    Two empty texts where it takes it.
    """
    if not _METRIC_NAME.fullmatch(name):
        problem = f"{seen(name)}, and the name of an attribute is part of a metric's name"
        return problem, "use letters, digits, spaces and _ . - alone"
    if name in _FOLDERS:
        return f"{seen(name)}, {_NO_METRIC}", "use a name with a letter or a digit in it"
    if len(name) > _LONGEST:
        return f"of over {_LONGEST} characters, {_NO_METRIC}", "shorten it"
    return "", ""


def name_rules(raw: Mapping[str, Any], num_classes: int) -> Iterator[Mistake]:
    """Yield what is wrong about ``class_names`` of a raw section ``data``.

    Args:
        raw: The section; it may hold anything.
        num_classes: Known or declared number of classes; 0 where it is not known yet.
    """
    names = raw.get("class_names")
    if not isinstance(names, (list, tuple)):
        return
    task = peek_word(raw, "task", default="classification")
    if task == "causal_lm":
        problem = "has no meaning for causal_lm: the next token is the label"
        yield Mistake("class_names", problem, "remove it")
        return
    if num_classes and len(names) != num_classes:
        classes = counted(num_classes, "class")
        problem = f"has {counted(len(names), 'name')}, and the dataset has {classes}"
        yield Mistake("class_names", problem, "give one name for each, in the order of numbers")
    texts = [name for name in names if isinstance(name, str)]
    odd = [name for name in texts if not _METRIC_NAME.fullmatch(name.strip())]
    if task != "multi_label":
        return
    for name in (*odd[:1], *(name for name in texts if name.strip() in _FOLDERS)):
        problem, fix = metric_problem(name.strip())
        yield Mistake("class_names", f"has {problem}", fix)
    long = [name for name in texts if len(name.strip()) > _LONGEST]
    if long:
        too_long = f"{counted(len(long), 'name')} of over {_LONGEST} characters"
        problem = f"has {too_long}, {_NO_METRIC}"
        yield Mistake("class_names", problem, "shorten them")

"""The classes that a task is about, of those of its dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import (
    maybe_number,
    peek_number,
    peek_word,
    seen,
    whole,
)
from dpsweep.spec.data.datasets import BUILT_IN


def _classes(value: Any) -> Any:
    """Return class numbers: two or more, each once."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"must be a list of class numbers, got {seen(value)}")
    numbers = tuple(whole(entry) for entry in value)
    if len(numbers) < 2:
        raise ValueError(f"must name at least two classes, got {seen(list(value))}")
    if min(numbers) < 0:
        raise ValueError(f"has {min(numbers)}, and classes are numbered from 0")
    twice = [number for index, number in enumerate(numbers) if number in numbers[:index]]
    if twice:
        raise ValueError(f"has class {twice[0]} twice: name each once")
    return numbers


Classes = Annotated[
    tuple[int, ...],
    BeforeValidator(_classes),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 2,
            "uniqueItems": True,
        }
    ),
]


def class_rules(raw: Mapping[str, Any], data: Any) -> Iterator[Mistake]:
    """Yield what is wrong about the key ``classes`` of ``raw`` for the dataset of ``data``."""
    classes = raw.get("classes")
    if not isinstance(classes, (list, tuple)):
        return
    task = peek_word(data, "task", default="classification")
    if task != "classification":
        yield Mistake("classes", f"has no meaning for task {task}", "remove it")
    num_classes = BUILT_IN.get(peek_word(data, "dataset"), (0, 0))[1]
    num_classes = num_classes or int(peek_number(data, "num_classes", default=0))
    above = [n for n in map(maybe_number, classes) if n is not None and n >= num_classes > 0]
    if above:
        problem = f"has {above[0]:g}, but the dataset has the classes 0 to {num_classes - 1}"
        yield Mistake("classes", problem, "give class numbers of the dataset")

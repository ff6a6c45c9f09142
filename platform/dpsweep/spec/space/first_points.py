"""The points that a study evaluates first: whether each lies in the search space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.registry import did_you_mean
from dpsweep.spec.base import dotted
from dpsweep.spec.space.parameter import Parameter, Scalar
from dpsweep.spec.space.parameters import canonical_scalar


def check_points(parameters: Sequence[Parameter], points: Sequence[Any]) -> Iterator[Mistake]:
    """Yield what is wrong about points to evaluate first; a point may leave parameters open."""
    names = list(dict.fromkeys(parameter.name for parameter in parameters))
    fixed = {p.name: p.choices[0] for p in parameters if p.kind == "fixed" and p.by is None}
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            continue  # pydantic says so
        values = {**fixed, **point}
        for name, raw in point.items():
            try:
                value = canonical_scalar(raw)
            except ValueError as error:
                yield Mistake(dotted((index, str(name))), error.args[0])
                continue
            if name not in names:
                problem = "is not in the space"
                fix = did_you_mean(str(name), names) or f"the space has {', '.join(names)}"
            else:
                problem, fix = _point_problem(
                    [p for p in parameters if p.name == name], value, values
                )
            if problem:
                yield Mistake(dotted((index, str(name))), problem, fix)


def _point_problem(
    branches: Sequence[Parameter], value: Scalar, values: Mapping[str, Any]
) -> tuple[str, str]:
    """Say what is wrong about a point's value of a parameter, and how to mend it, or ""."""
    possible = [branch for branch in branches if branch.may_apply(values)]
    if len(possible) > 1:
        by = possible[0].by
        return f"has a domain for each {by}, and the point names none", f"add {by} to the point"
    problem = (possible or branches)[0].problem(value) if possible or len(branches) == 1 else None
    if problem is None and not possible:
        return "has no meaning at this point, by its `when`", "remove it from the point"
    return problem or "", ""

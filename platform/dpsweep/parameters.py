"""The parameters of a search space: ranges, choices, fixed values, and when each has a meaning.

In a spec, ``name: value`` fixes a parameter, and a mapping makes it vary:

    optim.lr: {loguniform: [0.01, 8]}        uniform, int and logint alike; `num: 5` for a grid
    noise.shape: {choice: [constant, cosine]}
    noise.end_ratio: {uniform: [0.4, 1.5], when: {noise.shape: cosine}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dpsweep.registry import did_you_mean
from dpsweep.spec_base import Flaw, number, seen, whole

ParameterKind = Literal["uniform", "loguniform", "int", "logint", "choice", "fixed"]
RANGES = ("uniform", "loguniform", "int", "logint")
DOMAINS = (*RANGES, "choice")
OPTIONS = ("num", "when")

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
# A number that YAML 1.1 takes for a text; no word looks like it.
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")

_SCALAR_SCHEMA = {"type": ["number", "string", "boolean", "null"]}
_RANGE_SCHEMA = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
SPACE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["method"],
    "additionalProperties": {
        "anyOf": [
            _SCALAR_SCHEMA,
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    **{kind: _RANGE_SCHEMA for kind in RANGES},
                    "choice": {"type": "array", "items": _SCALAR_SCHEMA, "minItems": 1},
                    "num": {"type": "integer", "minimum": 1},
                    "when": {
                        "type": "object",
                        "additionalProperties": {
                            "anyOf": [
                                _SCALAR_SCHEMA,
                                {"type": "array", "items": _SCALAR_SCHEMA, "minItems": 1},
                            ]
                        },
                    },
                },
            },
        ]
    },
}

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Parameter:
    """One named dimension of a search space.

    Attributes:
        name: Dotted name of a hyperparameter, or ``method``.
        kind: uniform, loguniform (float ranges), int, logint (whole ranges), choice or fixed.
        low: Lower bound of a range, inclusive.
        high: Upper bound of a range, inclusive.
        choices: Values of a choice; of a fixed parameter, its one value.
        num: Number of points that a grid takes from a range.
        when: Other parameters and the values at which this one has a meaning; all must hold.
    """

    name: str
    kind: ParameterKind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Scalar, ...] = ()
    num: int | None = None
    when: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)

    @property
    def is_range(self) -> bool:
        """True for a range of numbers."""
        return self.kind in RANGES

    @property
    def is_whole(self) -> bool:
        """True for a range of whole numbers."""
        return self.kind in ("int", "logint")

    def to_spec(self) -> Any:
        """Return what a spec says after the name: a value, or a mapping."""
        if self.kind == "fixed":
            return self.choices[0]
        domain: dict[str, Any] = {
            self.kind: [self.low, self.high] if self.is_range else list(self.choices)
        }
        if self.num is not None:
            domain["num"] = self.num
        if self.when:
            domain["when"] = {
                name: values[0] if len(values) == 1 else list(values)
                for name, values in self.when.items()
            }
        return domain

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Return whether the parameter has a meaning beside the values of those before it."""
        return all(
            name in values and same_among(values[name], allowed)
            for name, allowed in self.when.items()
        )

    def problem(self, value: Any) -> str | None:
        """Say why ``value`` is outside this parameter's domain, or return None."""
        if not self.is_range:
            if same_among(value, self.choices):
                return None
            what = "is fixed to" if self.kind == "fixed" else "must be one of"
            return f"{what} {', '.join(seen(choice) for choice in self.choices)}, got {seen(value)}"
        if isinstance(value, str):
            return f"must be a number, got {seen(value)}"
        try:
            given = whole(value) if self.is_whole else number(value)
        except ValueError as error:
            return str(error)
        if not self.low <= given <= self.high:
            return f"must be within [{seen(self.low)}, {seen(self.high)}], got {seen(value)}"
        return None


def same(a: Any, b: Any) -> bool:
    """Return whether two scalars are the same value; true and 1 are not.

    >>> same(1, 1.0), same(1, True)
    (True, False)
    """
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def same_among(value: Any, values: Sequence[Any]) -> bool:
    """Return whether ``value`` is the same as one of ``values``."""
    return any(same(value, other) for other in values)


def canonical_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space in one spelling, in its own order; one with flaws is returned as it is."""
    parameters, flaws = parse_space(space)
    if flaws:
        return dict(space)
    table = {parameter.name: parameter for parameter in parameters}
    return {name: table[name].to_spec() for name in space}


def parse_space(space: Mapping[str, Any]) -> tuple[tuple[Parameter, ...], list[Flaw]]:
    """Return the parameters of a space that are well formed, and what is wrong about the rest.

    Parameters come in an order in which each stands after those that its ``when`` names.
    """
    parameters: dict[str, Parameter] = {}
    flaws: list[Flaw] = []
    for name, domain in space.items():
        try:
            parameters[name] = _parameter(name, domain)
        except ValueError as error:
            what, fix = error.args if len(error.args) == 2 else (str(error), "")
            flaws.append(Flaw((str(name),), what, fix))
    if "method" not in space:
        flaws.append(Flaw((), "has no method", "add `method: dp_sgd`; see `dpsweep methods`"))
    flaws += _condition_flaws(parameters, space)
    ordered = _ordered(parameters)
    left = [p for p in parameters.values() if p not in ordered]
    flaws += _cycle_flaws({p.name: p for p in left})
    order = [str(name) for name in space]
    flaws.sort(key=lambda flaw: order.index(str(flaw.path[0])) if flaw.path else -1)
    return ordered, flaws


def _parameter(name: Any, domain: Any) -> Parameter:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("is not a parameter name", "write it like optim.lr: a-z 0-9 _ and dots")
    if isinstance(domain, (list, tuple)):
        shown = ", ".join(seen(value) for value in domain)
        raise ValueError(
            "a list is not a domain", f"write {{choice: [{shown}]}}, or {{uniform: [low, high]}}"
        )
    if not isinstance(domain, Mapping):
        return Parameter(name, "fixed", choices=(canonical_scalar(domain),))
    kind = _kind_of(name, domain)
    when = _when(domain.get("when", {})) if "when" in domain else {}
    if name == "method" and (when or kind in RANGES):
        raise ValueError("must be one method or a choice of them", "{choice: [dp_sgd, ...]}")
    if kind == "choice":
        if "num" in domain:
            raise ValueError("`num` has no meaning for a choice", "remove it")
        return Parameter(name, kind, choices=_choices(domain[kind]), when=when)
    low, high = _bounds(kind, domain[kind])
    num = None
    if "num" in domain:
        try:
            num = whole(domain["num"])
        except ValueError as error:
            raise ValueError(f"num {error}", "") from None
        if num < 1:
            raise ValueError(f"num must be >= 1, got {num}", "")
    return Parameter(name, kind, low, high, num=num, when=when)


def _kind_of(name: str, domain: Mapping[str, Any]) -> Any:
    kinds = [key for key in domain if key in DOMAINS]
    unknown = [str(key) for key in domain if key not in DOMAINS and key not in OPTIONS]
    if unknown and not kinds:
        hint = did_you_mean(unknown[0], list(DOMAINS))
        if not hint and isinstance(domain[unknown[0]], Mapping):
            raise ValueError(
                f"is not a parameter: {unknown[0]!r} below it is another mapping",
                f"write one dotted name, `{name}.{unknown[0]}:`",
            )
        raise ValueError(
            f"unknown domain {unknown[0]!r}",
            (hint + " " if hint else "") + f"known: {', '.join(DOMAINS)}",
        )
    if unknown:
        hint = did_you_mean(unknown[0], [*DOMAINS, *OPTIONS])
        raise ValueError(
            f"unknown key {unknown[0]!r}", hint or f"beside {kinds[0]}: {', '.join(OPTIONS)}"
        )
    if not kinds:
        raise ValueError("has no domain", f"give one of {', '.join(DOMAINS)}")
    if len(kinds) > 1:
        raise ValueError(f"has {len(kinds)} domains: {', '.join(kinds)}", "keep one")
    return kinds[0]


def canonical_scalar(value: Any) -> Scalar:
    """Return a fixed value or a choice; a text such as ``1e-5`` is the number it looks like.

    Raises:
        ValueError: (what, fix).
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {seen(value)}", "")
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"must be a number, a word, true, false or null, got {seen(value)}", "")


def _choices(values: Any) -> tuple[Scalar, ...]:
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"choice must be a list, got {seen(values)}", f"[{seen(values)}]")
    if not values:
        raise ValueError("choice is empty", "list at least one value")
    choices = tuple(canonical_scalar(value) for value in values)
    for index, value in enumerate(choices):
        # `==`, not `same`: Optuna finds a choice again by equality.
        if value in choices[:index]:
            raise ValueError(f"choice holds {seen(value)} twice", "remove one of the two")
    return choices


def _bounds(kind: str, values: Any) -> tuple[float, float]:
    if not isinstance(values, (list, tuple)) or len(values) != 2:
        raise ValueError(f"{kind} needs two bounds, got {seen(values)}", f"{kind}: [low, high]")
    convert = whole if kind in ("int", "logint") else number
    try:
        low, high = convert(values[0]), convert(values[1])
    except ValueError as error:
        raise ValueError(f"a bound of {kind} {error}", "") from None
    if low > high:
        raise ValueError(
            f"bounds are reversed: [{seen(low)}, {seen(high)}]",
            f"write [{seen(high)}, {seen(low)}]",
        )
    if low == high:
        raise ValueError(
            f"bounds are equal: [{seen(low)}, {seen(high)}]",
            f"a fixed value is written {seen(low)}",
        )
    if kind in ("loguniform", "logint") and low <= 0:
        other = "uniform" if kind == "loguniform" else "int"
        raise ValueError(
            f"{kind} needs bounds > 0, got [{seen(low)}, {seen(high)}]",
            f"raise the lower bound, or use {other}",
        )
    return (low, high) if kind in ("int", "logint") else (float(low), float(high))


def _when(when: Any) -> dict[str, tuple[Scalar, ...]]:
    if not isinstance(when, Mapping) or not when:
        raise ValueError(f"when must be a mapping, got {seen(when)}", "when: {noise.shape: cosine}")
    result = {}
    for name, values in when.items():
        listed = list(values) if isinstance(values, (list, tuple)) else [values]
        if not listed:
            raise ValueError(f"when {name} lists no value", "give a value or remove the condition")
        result[str(name)] = tuple(canonical_scalar(value) for value in listed)
    return result


def _condition_flaws(
    parameters: Mapping[str, Parameter], space: Mapping[str, Any]
) -> Iterator[Flaw]:
    for parameter in parameters.values():
        for name, values in parameter.when.items():
            what = fix = ""
            other = parameters.get(name)
            if name == parameter.name:
                what, fix = "its `when` names itself", "remove the condition"
            elif name not in space:
                what = f"its `when` names {name!r}, which is not in the space"
                fix = did_you_mean(name, list(space)) or f"add {name} to the space"
            elif other is not None and other.is_range:
                what = f"its `when` names {name!r}, which is a range"
                fix = "conditions work on a choice or a fixed value"
            elif other is not None:
                never = [value for value in values if not same_among(value, other.choices)]
                if never:
                    what = f"its `when` waits for {name} = {seen(never[0])}, which cannot happen"
                    fix = f"{name} is {' or '.join(seen(value) for value in other.choices)}"
            if what:
                yield Flaw((parameter.name,), what, fix)


def _ordered(parameters: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters, each after those its ``when`` names; those in a cycle are left out."""
    placed: dict[str, Parameter] = {}
    waiting = dict(parameters)
    while waiting:
        ready = [
            name
            for name, parameter in waiting.items()
            if all(other in placed or other not in parameters for other in parameter.when)
        ]
        if not ready:
            break
        for name in ready:
            placed[name] = waiting.pop(name)
    return tuple(placed.values())


def _cycle_flaws(left: Mapping[str, Parameter]) -> Iterator[Flaw]:
    """Yield one flaw per circle; ``left`` are the parameters in a circle or behind one."""
    known: set[str] = set()
    for name in left:
        trail = [name]
        while trail[-1] not in trail[:-1]:
            trail.append(next(other for other in left[trail[-1]].when if other in left))
        circle = trail[trail.index(trail[-1]) :]
        if len(circle) > 2 and not known & set(circle):  # of itself: see _condition_flaws
            what = f"its `when` goes in a circle: {' -> '.join(circle)}"
            yield Flaw((circle[0],), what, "break the circle")
        known |= set(circle)


def check_points(parameters: Sequence[Parameter], points: Sequence[Any]) -> Iterator[Flaw]:
    """Yield what is wrong about points to evaluate first; a point may leave parameters open."""
    table = {parameter.name: parameter for parameter in parameters}
    fixed = {p.name: p.choices[0] for p in parameters if p.kind == "fixed"}
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            continue  # pydantic says so
        values = {**fixed, **point}
        for name, raw in point.items():
            parameter = table.get(name)
            what = fix = ""
            try:
                value = canonical_scalar(raw)
            except ValueError as error:
                yield Flaw((index, str(name)), error.args[0])
                continue
            if parameter is None:
                what = "is not in the space"
                fix = did_you_mean(str(name), list(table)) or f"the space has {', '.join(table)}"
            else:
                what = parameter.problem(value) or ""
                if not what and any(
                    other in values and not same_among(values[other], allowed)
                    for other, allowed in parameter.when.items()
                ):
                    what = "has no meaning at this point, by its `when`"
                    fix = "remove it from the point"
            if what:
                yield Flaw((index, str(name)), what, fix)

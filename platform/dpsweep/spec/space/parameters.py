"""The parameters of a search space: ranges, choices, fixed values, and when each has a meaning.

In a spec, ``name: value`` fixes a parameter, and a mapping makes it vary:

    optim.lr: {loguniform: [0.01, 8]}        uniform, int and logint alike; `num: 5` for a grid
    noise.shape: {choice: [constant, cosine]}
    noise.end_ratio: {uniform: [0.4, 1.5], when: {noise.shape: cosine}}
    optim.lr: {by: {method: {dp_sgd: {loguniform: [0.1, 8]}, adamix: {loguniform: [0.001, 0.1]}}}}

The last one is a parameter of one name with several domains, its branches. A name that ends in
``.options`` has mappings for values: ``model.options: {act_layer: gelu}``, which are kept as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.registry import did_you_mean
from dpsweep.spec.base import dotted, number, seen, whole
from dpsweep.spec.space.parameter import RANGES, Parameter, Scalar, same_among

DOMAINS = (*RANGES, "choice")
OPTIONS = ("num", "when")

_BY_FORM = "write {by: {method: {dp_sgd: {loguniform: [0.1, 8]}, adamix: 0.05}}}"
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
# A number that YAML 1.1 takes for a text; no word looks like it.
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


def canonical_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space in one spelling, in its own order; one with flaws is returned as it is."""
    parameters, flaws = parse_space(space)
    if flaws:
        return dict(space)
    table = {parameter.path: parameter.to_spec() for parameter in parameters}
    canonical: dict[str, Any] = {}
    for name, domain in space.items():
        if (name,) in table:
            canonical[name] = table[(name,)]
        else:
            ((by, branches),) = domain["by"].items()
            own = {canonical_scalar(word): (name, "by", by, str(word)) for word in branches}
            canonical[name] = {"by": {by: {word: table[path] for word, path in own.items()}}}
    return canonical


def parse_space(space: Mapping[str, Any]) -> tuple[tuple[Parameter, ...], list[Mistake]]:
    """Return the parameters of a space that are well formed, and what is wrong about the rest.

    Parameters come in an order in which each stands after those that its ``when`` names. Which
    methods there are is not known here: a ``when`` may wait for any.
    """
    parameters: list[Parameter] = []
    flaws: list[Mistake] = []
    for name, domain in space.items():
        for path, branch in _branches(name, domain):
            try:
                parameter = _parameter(name, branch)
                parameters.append(parameter if len(path) == 1 else _branch(parameter, path))
            except ValueError as error:
                problem, fix = error.args if len(error.args) == 2 else (str(error), "")
                flaws.append(Mistake(dotted(tuple(map(str, path))), problem, fix))
    if "method" not in space:
        near = next((str(key) for key in space if did_you_mean(str(key), ["method"])), None)
        fix = f"write method instead of {near}" if near else "add `method: dp_sgd`"
        flaws.append(Mistake("", "has no method", f"{fix}; see `dpsweep methods`"))
    flaws += _condition_flaws(parameters, space)
    ordered = _ordered(parameters)
    left = [p for p in parameters if p not in ordered]
    flaws += _cycle_flaws({p.name: p for p in left})
    order = [str(name) for name in space]
    flaws.sort(key=lambda flaw: _place(flaw.key, order))
    return ordered, flaws


def _place(key: str, names: Sequence[str]) -> int:
    """Return the place of the parameter that a mistake is about; -1 for the space itself."""
    own = [name for name in names if key == name or key.startswith(f"{name}.")]
    return names.index(max(own, key=len)) if own else -1


def _branches(name: Any, domain: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the path of each domain of a parameter, and what stands there."""
    by = domain.get("by") if isinstance(domain, Mapping) and len(domain) == 1 else None
    if isinstance(by, Mapping) and len(by) == 1 and name != "method":
        ((other, branches),) = by.items()
        if isinstance(branches, Mapping) and branches:
            yield from (((name, "by", other, word), branch) for word, branch in branches.items())
            return
    yield (name,), domain  # one domain, or something that is refused as one


def _branch(parameter: Parameter, path: tuple[Any, ...]) -> Parameter:
    """Return the parameter as the branch that its path says.

    Raises:
        ValueError: (what, fix).
    """
    *_, by, word = path
    if by in parameter.when:
        raise ValueError(f"its `when` names {by}, which decides between the branches", "remove it")
    return replace(parameter, when={str(by): (canonical_scalar(word),), **parameter.when}, by=by)


def _parameter(name: Any, domain: Any) -> Parameter:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("is not a parameter name", "write it like optim.lr: a-z 0-9 _ and dots")
    if isinstance(domain, (list, tuple)) and any(isinstance(v, Mapping) for v in domain):
        raise ValueError("a list of domains is not a domain", f"for one a method: {_BY_FORM}")
    if isinstance(domain, (list, tuple)):
        shown = ", ".join(seen(value) for value in domain)
        raise ValueError(
            "a list is not a domain", f"write {{choice: [{shown}]}}, or {{uniform: [low, high]}}"
        )
    if _takes_mappings(name):
        domain = _as_json(domain)
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


def _takes_mappings(name: str) -> bool:
    return name.endswith(".options")


def _as_json(domain: Any) -> Any:
    """Return a domain of mappings with each of them as JSON."""
    if not isinstance(domain, Mapping):
        return domain
    if not any(key in DOMAINS or key in OPTIONS for key in domain):
        try:
            return json.dumps(dict(domain), sort_keys=True)
        except TypeError:
            raise ValueError("holds what is no number, word or list of them", "") from None
    choices = domain.get("choice")
    if isinstance(choices, (list, tuple)):
        return {**domain, "choice": [_as_json(choice) for choice in choices]}
    return domain


def _kind_of(name: str, domain: Mapping[str, Any]) -> Any:
    if any(str(key).partition("_")[0] == "by" for key in domain):
        raise ValueError("`by` stands alone, above one parameter and its values", _BY_FORM)
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
    parameters: Sequence[Parameter], space: Mapping[str, Any]
) -> Iterator[Mistake]:
    for parameter in parameters:
        for name, values in parameter.when.items():
            problem = fix = ""
            its = "its `by`" if name == parameter.by else "its `when`"
            others = [other for other in parameters if other.name == name]
            if name == parameter.name:
                problem, fix = f"{its} names itself", "remove the condition"
            elif name not in space:
                problem = f"{its} names {name!r}, which is not in the space"
                fix = did_you_mean(name, list(space))
                fix = fix or f"correct the name, or add {name} to the space with what it can be"
            elif any(other.is_range for other in others):
                problem = f"{its} names {name!r}, which is a range"
                fix = "conditions work on a choice or a fixed value"
            elif others and name != "method":  # see SearchSpace.check
                choices = list(dict.fromkeys(c for other in others for c in other.choices))
                never = [value for value in values if not same_among(value, choices)]
                if never:
                    problem = f"{its} waits for {name} = {seen(never[0])}, which cannot happen"
                    fix = f"{name} is {' or '.join(seen(value) for value in choices)}; "
                    fix += f"remove {parameter.name}, or --set search.space.{parameter.name}=null"
            if problem:
                yield Mistake(dotted(parameter.path), problem, fix)


def _ordered(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters, each after those its ``when`` names; those in a cycle are left out."""
    placed: list[Parameter] = []
    waiting = list(parameters)
    while waiting:
        names = {parameter.name for parameter in waiting}
        ready = [parameter for parameter in waiting if not names & set(parameter.when)]
        if not ready:
            break
        placed += ready
        waiting = [parameter for parameter in waiting if names & set(parameter.when)]
    return tuple(placed)


def reachable(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return those that some configuration can have; each stands after what its ``when`` names."""
    reached: list[Parameter] = []
    for parameter in parameters:
        if all(
            any(
                other.name == name and any(same_among(choice, allowed) for choice in other.choices)
                for other in reached
            )
            for name, allowed in parameter.when.items()
        ):
            reached.append(parameter)
    return tuple(reached)


def _cycle_flaws(left: Mapping[str, Parameter]) -> Iterator[Mistake]:
    """Yield one flaw per circle; ``left`` are the parameters in a circle or behind one."""
    visited: set[str] = set()
    for name in left:
        trail = [name]
        while trail[-1] not in trail[:-1]:
            trail.append(next(other for other in left[trail[-1]].when if other in left))
        circle = trail[trail.index(trail[-1]) :]
        if len(circle) > 2 and not visited & set(circle):  # of itself: see _condition_flaws
            problem = f"its `when` goes in a circle: {' -> '.join(circle)}"
            yield Mistake(circle[0], problem, "break the circle")
        visited |= set(circle)

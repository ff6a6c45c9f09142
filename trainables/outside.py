"""Methods of other packages: what they declare is checked as they load, what hooks return, too."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from numbers import Real
from typing import Any

from dpsweep.foundation.errors import (
    BadInputError,
    Mistake,
    SweepError,
    described,
    is_failure,
    is_own,
)
from dpsweep.foundation.registry import package_of
from dpsweep.privacy.events import Plan
from dpsweep.spec.space.hyperparameters import Hyperparameter
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.features.spec import FeatureSpec
from dpsweep.trainables.method import Method

#: Keys of a configuration that are no hyperparameter: the name of its method.
RESERVED = ("method",)


def check_declared(method: Any) -> None:
    """Refuse a method whose declarations would break the specs of others, or its own later.

    Lists of hyperparameters and of tasks become what they are declared to be.

    Raises:
        TypeError: It is no ``Method``, or one of its declarations is of another kind.
        ValueError: Two hyperparameters have one name, or one has a name that is taken.
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError("it is no subclass of dpsweep's Method")
    declared = method.hyperparameters
    if isinstance(declared, list):
        method.hyperparameters = declared = tuple(declared)
    if not isinstance(declared, tuple):
        raise TypeError(f"hyperparameters is {type(declared).__name__}, not a tuple")
    for each in declared:
        if not isinstance(each, Hyperparameter):
            raise TypeError(f"hyperparameters holds {type(each).__name__}, not Hyperparameter")
        if not isinstance(each.name, str) or not each.name:
            raise TypeError(f"a hyperparameter has the name {each.name!r}, which is no word")
    counts = Counter(each.name for each in declared)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"hyperparameters has {', '.join(twice)} twice")
    taken = [name for name in RESERVED if name in counts]
    if taken:
        raise ValueError(f"a hyperparameter has the name {taken[0]!r}, which is taken")
    tasks = method.tasks
    if isinstance(tasks, (list, tuple)):
        method.tasks = tasks = frozenset(tasks)
    if not isinstance(tasks, (set, frozenset)) or not all(isinstance(t, str) for t in tasks):
        raise TypeError(f"tasks is {type(tasks).__name__}, not a set of words")


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(each, kind) for each in values)


def _maps_to(kind: type, values: Any) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(key, str) and isinstance(value, kind) for key, value in values.items()
    )


def _is_release(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _are(Real, value)


#: Hook of a class of method -> what it returns, in words, and whether something is that.
_RETURNS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "plan": ("a Plan", lambda value: isinstance(value, Plan)),
    "complete": ("a dict", lambda value: _maps_to(object, value)),
    "preflight": ("a list of Mistake", lambda value: _are(Mistake, value)),
    "notes": ("a list of words", lambda value: _are(str, value)),
    "fitted_defaults": ("a dict", lambda value: _maps_to(object, value)),
    "plan_facts": ("a dict of numbers", lambda value: _maps_to(Real, value)),
    "peak_rate": ("a number", lambda value: value is None or isinstance(value, Real)),
    "input_norm": ("a number", lambda value: isinstance(value, Real)),
    "start_problems": ("a list of Mistake", lambda value: _are(Mistake, value)),
    "carried_over": ("a dict", lambda value: _maps_to(object, value)),
    "starts_from": ("a run and an epsilon", lambda value: value is None or _is_release(value)),
    "extractor": ("a FeatureSpec", lambda value: value is None or isinstance(value, FeatureSpec)),
    "public_metrics": ("a dict of words", lambda value: _maps_to(str, value)),
}


def is_outside(method: type[Method]) -> bool:
    """Say whether a method is another package's."""
    return not method.__module__.startswith("dpsweep.")


def asked(
    method: type[Method], hook: str, *arguments: Any, has_records: bool = False, **named: Any
) -> Any:
    """Return what a hook of a class of method returns.

    Args:
        method: The class.
        hook: Name of a function of its.
        arguments: What it is called with, as are ``named``.
        has_records: Whether private records are among them: then words of its errors are left out,
            those of a ``SweepError``, too, and nothing is chained.
    Raises:
        SweepError: What the hook raises, as it is to.
        BadInputError: The method is of another package, and the hook fails, or returns something
            of another type.
    """
    call = getattr(method, hook)
    if not is_outside(method):
        return call(*arguments, **named)
    try:
        value = call(*arguments, **named)
        if isinstance(value, Iterator):  # of a hook that yields
            value = list(value)
    except BaseException as error:
        if not is_failure(error):
            raise
        if isinstance(error, SweepError) and (is_own(error) or not has_records):
            if has_records:
                raise error from None
            raise
        refuses = ", which is to raise InfeasibleBudgetError where there is none"
        raise BadInputError(
            f"{shown_name(method)}, which another package brings, fails in its `{hook}`",
            because=f"{described(error)} ({brought_by(method)})",
            fix=f"correct `{hook}`{refuses if hook == 'plan' else ''}",
        ) from (None if has_records else error)
    kind, is_right = _RETURNS.get(hook, ("", lambda value: True))
    if not is_right(value):
        raise BadInputError(
            f"`{hook}` of {shown_name(method)} has returned {type(value).__name__}, not {kind}",
            because=f"another package brings it: {brought_by(method)}",
            fix=f"let it return {kind}",
        )
    return value


def shown_name(method: type[Method]) -> str:
    """Return another package's method as an error calls it, by its name in the table of methods."""
    return f"method {_name(method)!r}"


def brought_by(method: type[Method]) -> str:
    """Return the package of a method and its version; its module where that is not known."""
    point = TRAINABLES.outside().get(_name(method))
    return method.__module__ if point is None or point.dist is None else package_of(point)


def _name(method: type[Method]) -> str:
    points = TRAINABLES.outside().items()
    return next((name for name, point in points if _lies_at(point, method)), method.__name__)


def _lies_at(point: EntryPoint, method: type[Method]) -> bool:
    """Say whether an entry point names a method, which may be defined elsewhere; loads nothing."""
    thing: Any = sys.modules.get(point.module)
    for name in point.attr.split("."):
        thing = getattr(thing, name, None)
    return thing is method

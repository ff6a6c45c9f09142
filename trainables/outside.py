"""Methods of other packages: what they declare is checked as they load."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dpsweep.spec.space.hyperparameters import Hyperparameter
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

"""Hyperparameters of a method: names, types, bounds, defaults; checked before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.registry import did_you_mean, installed

Kind = Literal["float", "int", "str", "bool"]
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Retired(NamedTuple):
    """A word that a hyperparameter once had: studies that were launched with it go on.

    Attributes:
        word: The old word.
        what: Why it is refused in a new study; completes "'WORD' ...".
        fix: What to write in its place.
    """

    word: str
    what: str
    fix: str


class Beside(NamedTuple):
    """Values of another hyperparameter beside which one has an effect.

    Attributes:
        other: The name of the other one.
        values: Some of its values.
        is_among: Whether the other one has to be among them, or must not be.
    """

    other: str
    values: tuple[Any, ...]
    is_among: bool = True


@dataclass(frozen=True)
class Hyperparameter:
    """One knob of a method.

    Attributes:
        name: Dotted name, as in a spec's search space (``optim.lr``).
        kind: Type of its values.
        default: Value where the spec says nothing; None means "derived" and needs ``optional``.
        doc: One sentence: meaning and unit.
        low: Smallest allowed number, inclusive unless ``open_low``.
        high: Largest allowed number, inclusive.
        open_low: True when ``low`` itself is not allowed.
        choices: Allowed words; an entry that ends in ``/`` allows any word with that prefix, one
            with a ``:`` any place of a function, as in ``package.module:function``.
        form: Regular expression of further words, which one of ``choices`` describes.
        optional: True when None is allowed.
        changes_privacy: True when the value enters the privacy plan.
        retired: Words that only studies that have them already may have (``retired_words``).
        wins_over: The hyperparameter that has no effect where this one has a value.
        only_beside: Where it has an effect at all; None: everywhere.
        uses_public: From a value to the weights or records that are declared public and that it
            makes a trial use, in words; "" for none. None: it makes it use none.
        group: Entry point group whose names are words besides ``choices``.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    choices: tuple[str, ...] | None = None
    form: str | None = None
    optional: bool = False
    changes_privacy: bool = False
    retired: tuple[Retired, ...] = ()
    wins_over: str | None = None
    only_beside: Beside | None = None
    uses_public: Callable[[Any], str] | None = None
    group: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words, with those that installed packages add."""
        outside = () if self.group is None else tuple(installed(self.group))
        return tuple(dict.fromkeys((self.choices or ()) + outside))

    def problem(self, value: Any) -> str | None:
        """Say what is wrong with ``value``, or return None.

        >>> lr = Hyperparameter("optim.lr", "float", 0.1, "Learning rate.", low=0, open_low=True)
        >>> lr.problem(-1.0)
        'must be > 0, got -1.0'
        >>> lr.problem(0.5) is None
        True
        """
        if value is None:
            return None if self.optional else "must not be null"
        if self.kind == "bool":
            return None if isinstance(value, bool) else f"must be true or false, got {value!r}"
        if self.kind == "str":
            return self._word_problem(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"must be a number, got {value!r}"
        if not math.isfinite(value):
            return f"must be finite, got {value!r}"
        if self.kind == "int" and value != int(value):
            return f"must be a whole number, got {value!r}"
        if self.low is not None and (value < self.low or (self.open_low and value == self.low)):
            return f"must be {'>' if self.open_low else '>='} {self.low:g}, got {value!r}"
        if self.high is not None and value > self.high:
            return f"must be <= {self.high:g}, got {value!r}"
        return None

    def _word_problem(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"must be a word, got {value!r}"
        if self.form is not None and re.fullmatch(self.form, value):
            return None
        if self.choices is None or value in self.choices:
            return None
        if value in (old.word for old in self.retired):
            return None
        if _FUNCTION.fullmatch(value) and any(":" in choice for choice in self.choices):
            return None
        for prefix in self.choices:
            if prefix.endswith("/") and value.startswith(prefix) and len(value) > len(prefix):
                return None
        words = self.words
        if value in words:
            return None
        hint = did_you_mean(value, list(words))
        allowed = ", ".join(c + "NAME" if c.endswith("/") else c for c in words)
        return f"unknown value {value!r}{', ' + hint if hint else ''}; allowed: {allowed}"

    def coerce(self, value: Any) -> Any:
        """Return ``value`` in the declared type (an integral float becomes an int)."""
        if value is None:
            return None
        if self.kind == "int":
            return int(value)
        if self.kind == "float":
            return float(value)
        return value


def retired_words(
    declared: Iterable[Hyperparameter], values: Mapping[str, Sequence[Any]]
) -> list[Mistake]:
    """Return what no new study may say any more; a key is the name of a hyperparameter.

    Args:
        declared: The hyperparameters of a method.
        values: For each hyperparameter, the values that a space can give it.
    """
    return [
        Mistake(parameter.name, f"{old.word!r} {old.what}", old.fix)
        for parameter in declared
        for old in parameter.retired
        if old.word in values.get(parameter.name, ())
    ]


def resolve(declared: Iterable[Hyperparameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return every declared hyperparameter with its given or default value, in declared order.

    Raises:
        KeyError: ``given`` names something that is not declared (callers check specs first).
    """
    table = {parameter.name: parameter for parameter in declared}
    unknown = sorted(set(given) - set(table))
    if unknown:
        raise KeyError(f"undeclared hyperparameters: {', '.join(unknown)}")
    return {
        name: parameter.coerce(given.get(name, parameter.default))
        for name, parameter in table.items()
    }


def without_effect(declared: Iterable[Hyperparameter], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the hyperparameters of a configuration that decide nothing, each with the reason.

    >>> shape = Beside("noise.shape", ("constant",), is_among=False)
    >>> ratio = Hyperparameter("noise.end_ratio", "float", 1.0, "Ratio.", only_beside=shape)
    >>> without_effect([ratio], {"noise.shape": "constant", "noise.end_ratio": 0.5})
    {'noise.end_ratio': 'noise.shape is constant'}

    Args:
        declared: The hyperparameters of its method.
        config: Names and values.
    """
    idle = {}
    for parameter in declared:
        if parameter.wins_over in config and config.get(parameter.name) is not None:
            idle[parameter.wins_over] = f"{parameter.name} wins over it"
        beside = parameter.only_beside
        if beside is None or beside.other not in config:
            continue
        value = config[beside.other]
        if (value in beside.values) is not beside.is_among:
            idle[parameter.name] = f"{beside.other} is {value}"
    return {name: idle[name] for name in config if name in idle}


def public_data(declared: Iterable[Hyperparameter], config: Mapping[str, Any]) -> str:
    """Return which weights and records that are declared public a configuration uses, or "none".

    >>> shots = Hyperparameter("shots", "int", 5, "Shots.", uses_public="{} a class".format)
    >>> public_data([shots], {"shots": 2}), public_data([shots], {})
    ('2 a class', 'none')

    Args:
        declared: The hyperparameters of its method.
        config: Names and values.
    """
    words = (
        parameter.uses_public(config[parameter.name])
        for parameter in declared
        if parameter.uses_public is not None and config.get(parameter.name) is not None
    )
    return ", ".join(word for word in words if word) or "none"

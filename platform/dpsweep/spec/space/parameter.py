"""A parameter of a search space: its domain, and when it has a meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dpsweep.spec.base import number, seen, whole

ParameterKind = Literal["uniform", "loguniform", "int", "logint", "choice", "fixed"]
RANGES = ("uniform", "loguniform", "int", "logint")
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
        by: The parameter that decides between several of this name; its value for this one, the
            branch, is in ``when``. None: there is one of the name.
    """

    name: str
    kind: ParameterKind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Scalar, ...] = ()
    num: int | None = None
    when: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    by: str | None = None

    @property
    def key(self) -> str:
        """A name of its own, also among branches: Optuna allows one distribution for a name."""
        return self.name if self.by is None else f"{self.name}[{self.when[self.by][0]}]"

    @property
    def path(self) -> tuple[str, ...]:
        """Where a space says it."""
        if self.by is None:
            return (self.name,)
        return (self.name, "by", self.by, str(self.when[self.by][0]))

    @property
    def is_range(self) -> bool:
        """True for a range of numbers."""
        return self.kind in RANGES

    @property
    def is_whole(self) -> bool:
        """True for a range of whole numbers."""
        return self.kind in ("int", "logint")

    def to_spec(self) -> Any:
        """Return what a spec says after the name, or after the branch: a value, or a mapping."""
        if self.kind == "fixed":
            return self.choices[0]
        domain: dict[str, Any] = {
            self.kind: [self.low, self.high] if self.is_range else list(self.choices)
        }
        if self.num is not None:
            domain["num"] = self.num
        when = {
            name: values[0] if len(values) == 1 else list(values)
            for name, values in self.when.items()
            if name != self.by
        }
        if when:
            domain["when"] = when
        return domain

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Return whether the parameter has a meaning beside the values of those before it."""
        return all(
            name in values and same_among(values[name], allowed)
            for name, allowed in self.when.items()
        )

    def may_apply(self, values: Mapping[str, Any]) -> bool:
        """Return whether nothing in ``values``, which may leave parameters open, rules it out."""
        return all(
            name not in values or same_among(values[name], allowed)
            for name, allowed in self.when.items()
        )

    def problem(self, value: Any) -> str | None:
        """Say why ``value`` is outside this parameter's domain, or return None."""
        if not self.is_range:
            if same_among(value, self.choices):
                return None
            demand = "is fixed to" if self.kind == "fixed" else "must be one of"
            return (
                f"{demand} {', '.join(seen(choice) for choice in self.choices)}, got {seen(value)}"
            )
        if isinstance(value, str):
            return f"must be a number, got {seen(value)}"
        try:
            converted = whole(value) if self.is_whole else number(value)
        except ValueError as error:
            return str(error)
        if not self.low <= converted <= self.high:
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

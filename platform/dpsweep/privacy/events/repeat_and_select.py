"""Selection of the best of a random number of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dpsweep.foundation import _validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, Check, PrivacyEvent
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.events.plan import Plan, to_dp_event


def _mean(name: str, value: Any) -> float:
    return _validate.at_least(name, value, 1)


def _shape(name: str, value: Any) -> float | str:
    if value == "poisson":
        return "poisson"
    if isinstance(value, str):
        raise BadInputError(f"{name} must be a number >= 0 or 'poisson', got {value!r}")
    return _validate.non_negative(name, value)


def _plan(name: str, value: Any) -> Plan:
    if not isinstance(value, Plan):
        raise BadInputError(f"{name} must be a Plan, got {type(value).__name__}")
    if any(run.part != "private" for run in value.runs):
        raise BadInputError(
            "the events inside repeat_and_select have no part of their own",
            fix="give the part of the selection itself; one selection for each part",
        )
    return value


@dataclass(frozen=True)
class RepeatAndSelect(PrivacyEvent):
    """The best of a random number K of independent runs; only the best is released.

    Papernot and Steinke 2022 (https://arxiv.org/abs/2110.03620). K is truncated negative
    binomial (``shape`` eta >= 0: 0 logarithmic, 1 geometric) or Poisson.

    Attributes:
        mean: E[K], at least 1.
        shape: eta, or "poisson".
        of: Plan of one run; the caller makes it the most expensive one. Its events are about one
            part, named by the run of this event: a selection by validation scores is one event
            for each of the two parts.
    """

    mean: float
    shape: float | Literal["poisson"]
    of: Plan

    name: ClassVar[str] = "repeat_and_select"
    checks: ClassVar[Mapping[str, Check]] = {"mean": _mean, "shape": _shape, "of": _plan}
    no_pld: ClassVar[str | None] = "the theorem (arXiv 2110.03620) is about Renyi curves"

    def to_json(self) -> dict[str, Any]:
        """Return it as a segment, the plan of one run as segments of its own."""
        return {**super().to_json(), "of": self.of.to_json()}

    @classmethod
    def read(cls, key: str, raw: Any) -> Any:
        """Return a field; the plan of one run from its segments."""
        return super().read(key, Plan.read(raw, "of: ") if key == "of" else raw)

    @property
    def sampling(self) -> str:
        """As in one run."""
        return self.of.sampling

    @property
    def is_private(self) -> bool:
        """As one run."""
        return self.of.is_private

    def renyi(self, orders: Array) -> Array:
        """Return the curve of theorem 2 or 6; it rests on other orders too, those of the grid."""
        grid = np.union1d(rdp.ORDERS, orders)
        once = plan_curve(multiset(self.of), grid)
        curve = rdp.repeat_and_select_rdp(once, grid, self.mean, self.shape)
        return curve[np.searchsorted(grid, orders)]

    def dp_event(self) -> Any:
        """Return it as a ``RepeatAndSelectDpEvent``, which the Renyi accountant alone takes."""
        from dp_accounting import dp_event

        shape = float("inf") if self.shape == "poisson" else self.shape
        return dp_event.RepeatAndSelectDpEvent(to_dp_event(self.of), self.mean, shape)

    def sort_key(self) -> tuple[str, Any, Any]:
        """Sort by all fields."""
        return ("RepeatAndSelect", repr(self), 0.0)

"""Selection of the best of a random number of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy import rdp
from dpsweep.privacy.events.base import Array, Check, PrivacyEvent
from dpsweep.privacy.events.losses import (
    Profile,
    loss_of_profile,
    privacy_loss_of_nothing,
    profile_of_plan,
)
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.events.plan import Plan, nested_plan, to_dp_event

_LARGEST_ROOT = 500.0
_FINE = 1e-4


def _kl_log_delta(curve: Array) -> Array:
    """Return log of the delta that a Renyi bound alone gives at any epsilon: sqrt(1 - e^-r)."""
    with np.errstate(divide="ignore"):
        return np.asarray(0.5 * np.log(-np.expm1(-curve)))


def selection_gamma(mean: float, shape: float) -> float:
    """Return gamma of the truncated negative binomial with E[K] = mean, on the low (safe) side.

    E[K] = eta (1 - gamma) / (gamma (1 - gamma^eta)), or (1/gamma - 1) / log(1/gamma) for eta = 0.

    >>> selection_gamma(10, 1), round(selection_gamma(10, 0), 4)
    (0.1, 0.0269)

    Args:
        mean: E[K] >= 1.
        shape: eta >= 0.
    """
    if mean == 1:
        return 1.0
    if shape == 1:
        return 1.0 / mean

    def mean_of(log_gamma: float) -> float:
        odds = math.expm1(-log_gamma)  # 1/gamma - 1
        return odds / -log_gamma if shape == 0 else shape * odds / -math.expm1(shape * log_gamma)

    # E[K] falls in gamma; at mean <= 2 (shape + 1) / gamma this bracket holds it.
    low, high = -700.0, -1e-12
    while mean_of(high) > mean:  # an enormous shape
        high /= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) >= mean else (low, middle)
    return math.exp(low)


def repeat_and_select_rdp(once: Array, orders: Array, mean: float, shape: float | str) -> Array:
    """Return the Renyi curve of the best of K runs with curve ``once``.

    Papernot and Steinke 2022 (https://arxiv.org/abs/2110.03620), theorem 2 (truncated negative
    binomial K) and theorem 6 (Poisson K), as in dp_accounting.

    Args:
        once: Curve of one run, shape (m,).
        orders: Its orders > 1, ascending, shape (m,).
        mean: E[K] >= 1.
        shape: eta >= 0 or "poisson".
    """
    with np.errstate(invalid="ignore"):
        if shape == "poisson":
            epsilon = np.log1p(1 / (orders - 1))
            # Rows: the order of the result; columns: the order that bounds its delta.
            log_delta = (orders - 1) * (once - epsilon[:, None] + np.log1p(-1 / orders)) - np.log(
                orders
            )
            log_delta = np.minimum(np.min(log_delta, axis=1), np.min(_kl_log_delta(once)))
            delta = np.minimum(np.exp(log_delta), 1.0)
            return np.asarray(once + mean * delta + math.log(mean) / (orders - 1))
        eta = float(shape)
        log_gamma = math.log(selection_gamma(mean, eta))
        constant = (1 + eta) * float(np.min((1 - 1 / orders) * once - log_gamma / orders))
        curve = once + math.log(mean) / (orders - 1) + constant
    # A Renyi curve does not fall, so a bound at a higher order holds at the lower ones too.
    return np.asarray(np.minimum.accumulate(curve[::-1])[::-1])


def selected_profile(once: Profile, mean: float, shape: float | str) -> Profile:
    """Return the privacy profile of the best of K runs, each of which has the profile ``once``.

    Theorem. Let each run have H(e) = sup of P(S) - exp(e) P'(S) over sets S at most once(e), for
    neighbors in either order. Release the best of K runs under an order that was fixed before,
    ties broken by fresh random bits. With the shift s of ``selection_shift``, the release has at
    most mean * once(e - s).

    Proof. With the random bits no two outputs are equal. Let a be the chance that a run of the one
    dataset is above an output o, and a' that of the other dataset. The output is o if one run gives
    o and the K - 1 others lie below: its density is that of a run times f'(1 - a), f the generating
    function of K. For truncated negative binomial K, f'(x) is c (1 - (1 - gamma) x)^(-1 - eta), so
    it is c (gamma + (1 - gamma) a)^(-1 - eta) at 1 - a. By the profile, a' <= exp(r) a + once(r);
    where (1 - gamma) once(r) <= gamma (exp(r) - 1), it follows that gamma + (1 - gamma) a' <=
    exp(r) (gamma + (1 - gamma) a), so f'(1 - a) <= exp((1 + eta) r) f'(1 - a'). For Poisson K,
    f'(x) = mean exp(mean (x - 1)), and f'(1 - a) / f'(1 - a') = exp(mean (a' - a)) is at most
    exp(mean once(0)). In both cases the density of the release on the one dataset, less exp(e)
    times that on the other, is at most f'(1 - a) (p - exp(e - s) p') with p and p' those of a run.
    The positive part of that, summed up, is at most the largest f', which is f'(1) = E[K], times
    once(e - s).

    Args:
        once: Of one run; it need not be convex.
        mean: E[K] >= 1.
        shape: eta >= 0 or "poisson".
    Returns:
        For epsilons >= 0. A Poisson K of 0 gives a fixed output on both datasets, which adds
        nothing there.
    """
    shift = selection_shift(once, mean, shape)
    return lambda epsilons: np.minimum(mean * once(epsilons - shift), 1.0)


def selection_shift(once: Profile, mean: float, shape: float | str) -> float:
    """Return by how much choosing the best moves the profile of a run, on the high (safe) side.

    That is (1 + eta) r with the smallest r >= 0 for which (1 - gamma) once(r) is at most
    gamma (exp(r) - 1), or ``mean * once(0)`` for Poisson K. See ``selected_profile``.

    Args:
        once: Profile of one run.
        mean: E[K] >= 1.
        shape: eta >= 0 or "poisson".
    """
    if shape == "poisson":
        return mean * float(once(np.zeros(1))[0])
    gamma = selection_gamma(mean, float(shape))
    if gamma == 1:
        return 0.0

    def is_enough(root: float) -> bool:
        return (1 - gamma) * float(once(np.array([root]))[0]) <= gamma * math.expm1(root)

    low, high = 0.0, 1e-3
    while not is_enough(high):
        low, high = high, 2 * high
        if high > _LARGEST_ROOT:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return (1 + float(shape)) * high


def _mean(name: str, value: Any) -> float:
    return validate.at_least(name, value, 1)


def _shape(name: str, value: Any) -> float | str:
    if value == "poisson":
        return "poisson"
    if isinstance(value, str):
        raise BadInputError(f"{name} must be a number >= 0 or 'poisson', got {value!r}")
    return validate.non_negative(name, value)


def _plan(name: str, value: Any) -> Plan:
    return nested_plan(name, value, RepeatAndSelect.name)


@dataclass(frozen=True)
class RepeatAndSelect(PrivacyEvent):
    """The best of a random number K of independent runs; only the best is released.

    K is truncated negative binomial (``shape`` eta >= 0: 0 logarithmic, 1 geometric) or Poisson.
    Its Renyi curve is that of Papernot and Steinke 2022 (https://arxiv.org/abs/2110.03620), its
    privacy loss distribution that of ``selected_profile``, which is tighter.

    Guarantees:
        Both hold if ``of`` bounds each run at every order and every epsilon, not at one delta
        alone; if runs draw what differs between them (configurations) independently from a
        distribution that was fixed before; if K is secret, none stops for what it saw, and nothing
        of the others is released.

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
    released_part: ClassVar[str] = "its best run only"
    checks: ClassVar[Mapping[str, Check]] = {"mean": _mean, "shape": _shape, "of": _plan}

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
        curve = repeat_and_select_rdp(once, grid, self.mean, self.shape)
        return curve[np.searchsorted(grid, orders)]

    def privacy_loss(self, interval: float) -> Any:
        """Return the distribution of ``selected_profile``, for one run of the plan ``of``."""
        once = multiset(self.of)
        if not once:
            return privacy_loss_of_nothing(interval)
        # Choosing the best magnifies what a coarse grid adds to one run.
        finer = min(interval, max(interval / 10, _FINE))
        profile = profile_of_plan(once, finer)
        return loss_of_profile(selected_profile(profile, self.mean, self.shape), interval)

    def dp_event(self) -> Any:
        """Return it as a ``RepeatAndSelectDpEvent``, which the Renyi accountant alone takes."""
        from dp_accounting import dp_event

        shape = float("inf") if self.shape == "poisson" else self.shape
        return dp_event.RepeatAndSelectDpEvent(to_dp_event(self.of), self.mean, shape)

    def sort_key(self) -> tuple[str, Any, Any]:
        """Sort by all fields."""
        return ("RepeatAndSelect", repr(self), 0.0)

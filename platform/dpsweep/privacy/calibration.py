"""Accounting inverted: the noise, or the number of steps, that a privacy budget allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsweep import _validate
from dpsweep.errors import BadInputError, InfeasibleBudgetError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import (
    ACCOUNTANTS,
    AccountantName,
    epsilon_and_order,
    epsilon_of,
    multiset,
    orders_at,
    plan_curve,
)
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.privacy.schedules import NoiseSchedule

# The search for a start value never leaves this range: a plan that needs more noise than this
# trains nothing, one that needs less protects nothing.
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
_MAX_STEPS = 10**9
_TOLERANCE: dict[AccountantName, float] = {"rdp": 1e-6, "pld": 1e-4}
_NO_PLAN = Plan(())


def calibrate_noise_multiplier(
    budget: PrivacyBudget, *, sample_rate: float, steps: int, accountant: AccountantName = "rdp"
) -> float:
    """Return the smallest constant noise multiplier that keeps DP-SGD within ``budget``.

    >>> budget = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
    >>> round(calibrate_noise_multiplier(budget, sample_rate=0.01, steps=480), 4)
    0.9231

    Guarantees:
        Those of ``calibrate_noise_schedule``.

    Args:
        budget: Target epsilon and delta, and the neighboring relation they refer to.
        sample_rate: Probability in (0, 1] that one record enters a batch.
        steps: Optimizer steps over the whole trial, at least 1.
        accountant: ``rdp`` or ``pld``.
    Returns:
        Noise standard deviation divided by ``max_grad_norm``.
    Raises:
        InfeasibleBudgetError: No finite noise multiplier meets the budget.
    """
    return calibrate_noise_schedule(
        budget,
        schedule=NoiseSchedule("constant"),
        sample_rate=sample_rate,
        steps=steps,
        accountant=accountant,
    )


def calibrate_noise_schedule(
    budget: PrivacyBudget,
    *,
    schedule: NoiseSchedule,
    sample_rate: float,
    steps: int,
    accountant: AccountantName = "rdp",
    before: Plan = _NO_PLAN,
) -> float:
    """Return the smallest start value of a noise schedule that keeps a trial within ``budget``.

    >>> budget = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
    >>> cosine = NoiseSchedule("cosine", end_ratio=0.35)
    >>> start = calibrate_noise_schedule(budget, schedule=cosine, sample_rate=0.01, steps=480)
    >>> epsilon_of(cosine.plan(start, 0.01, 480), delta=1e-5) <= 2.0
    True

    Guarantees:
        ``epsilon_of(before + schedule.plan(result, ...)) <= target_epsilon``, checked with the
        full accountant: the result is the private end of the bracket, never its middle. With
        ``result * (1 - 1e-3)`` the target is passed. Holds for Poisson sampling and
        add-or-remove-one only.

    Args:
        budget: Target epsilon and delta.
        schedule: Shape of the noise multiplier over the steps.
        sample_rate: Probability in (0, 1] that one record enters a batch.
        steps: Optimizer steps of the schedule, at least 1.
        accountant: ``rdp``, or ``pld`` (tighter; seconds for a schedule that is not constant).
        before: Events of the same trial outside the schedule (a noisy mean, a count).
    Returns:
        Noise multiplier of the first step.
    Raises:
        InfeasibleBudgetError: No start value up to 1e6 meets the budget.
    """
    _validate.one_of("accountant", accountant, ACCOUNTANTS)
    rate = _validate.in_unit_interval("sample_rate", sample_rate, one=True)
    factors, counts = _distinct(schedule.factors(steps))
    return calibrate_factors(budget, factors, counts, rate, accountant, before.merged())


def _distinct(factors: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    values, counts = np.unique(factors, return_counts=True)
    return tuple(values.tolist()), tuple(counts.tolist())


@lru_cache(maxsize=1024)
def calibrate_factors(
    budget: PrivacyBudget,
    factors: tuple[float, ...],
    counts: tuple[int, ...],
    sample_rate: float,
    accountant: AccountantName = "rdp",
    before: Plan = _NO_PLAN,
) -> float:
    """Return the smallest ``start`` such that ``counts[i]`` steps at noise ``start * factors[i]``
    and ``before`` together meet the budget; ``calibrate_noise_schedule`` says the rest.
    """
    target, delta = budget.target_epsilon, budget.delta

    def excess(start: float) -> float:
        plan = before + _plan(start, factors, counts, sample_rate)
        return epsilon_of(plan, delta=delta, accountant=accountant) - target

    spent = epsilon_of(before, delta=delta, accountant=accountant)
    largest = _MOST_NOISE / min(factors)
    if spent >= target or excess(largest) > 0:
        raise InfeasibleBudgetError(
            f"no noise multiplier keeps {sum(counts)} steps within epsilon={target:g} at "
            f"delta={delta:g}",
            because=f"sample_rate={sample_rate:g}, {accountant}, {budget.neighboring_relation}"
            + (f"; the events before already cost epsilon={spent:.4g}" if len(before) else ""),
            fix="raise the epsilon, or lower the cost of what comes before"
            if len(before)
            else "raise the epsilon",
        )
    if accountant == "rdp":
        return _calibrate_rdp(budget, factors, counts, sample_rate, before, excess)
    # The Renyi bound is never below the PLD accountant's, so its noise is on the private side.
    high = calibrate_factors(budget, factors, counts, sample_rate, "rdp", before)
    return _smallest(excess, high * 0.85, high, _TOLERANCE["pld"])


def _plan(
    start: float, factors: tuple[float, ...], counts: tuple[int, ...], sample_rate: float
) -> Plan:
    pairs = zip(factors, counts)
    return Plan(tuple(EventRun(PoissonGaussian(start * f, sample_rate), n) for f, n in pairs))


def _calibrate_rdp(
    budget: PrivacyBudget,
    factors: tuple[float, ...],
    counts: tuple[int, ...],
    sample_rate: float,
    before: Plan,
    excess: Callable[[float], float],
) -> float:
    """Calibrate on a few orders around the best one, then check on all of them.

    A minimum over fewer orders is a larger epsilon, so every start found is on the private side.
    """
    target, delta = budget.target_epsilon, budget.delta
    grid = orders_at(len(rdp.HIGH_ORDERS))
    spent = plan_curve(multiset(before), len(rdp.HIGH_ORDERS))
    scale, weight = np.array(factors), np.array(counts, dtype=np.float64)

    def restricted(chosen: slice, scale: NDArray, weight: NDArray) -> Callable[[float], float]:
        def excess_of(start: float) -> float:
            curves = rdp.poisson_gaussian_rdp(start * scale, sample_rate, grid[chosen])
            curve = spent[chosen] + weight @ curves
            return float(rdp.epsilons(curve[None, :], grid[chosen], delta)[0][0]) - target

        return excess_of

    # A first guess from at most 24 noise multipliers, each group at its smallest.
    groups = np.array_split(np.arange(len(scale)), min(24, len(scale)))
    few = np.array([scale[group[0]] for group in groups])
    few_weight = np.array([weight[group].sum() for group in groups])
    base = slice(0, len(rdp.ORDERS))
    high = _smallest(restricted(base, few, few_weight), 0.5, 1.0, 1e-2)
    tolerance = _TOLERANCE["rdp"]
    for _ in range(6):
        best = _best_order(high, factors, counts, sample_rate, before, delta)
        index = int(np.searchsorted(grid, best))
        chosen = slice(max(0, index - 2), min(len(grid), index + 3))
        high = _smallest(restricted(chosen, scale, weight), high * 0.98, high, tolerance / 2)
        found = excess(high)
        if found <= 0 and excess(high * (1 - tolerance)) > 0:
            return high
    # The best order jumps about (a bound that drops to zero at once): search on all orders.
    return _smallest(excess, high * 0.9, high, tolerance)


def _best_order(
    start: float,
    factors: tuple[float, ...],
    counts: tuple[int, ...],
    sample_rate: float,
    before: Plan,
    delta: float,
) -> float:
    plan = before + _plan(start, factors, counts, sample_rate)
    return epsilon_and_order(multiset(plan), delta)[1]


def _smallest(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return a noise with ``excess <= 0`` within ``tolerance`` (relative) of one with ``> 0``.

    ``excess`` falls in its argument. Secant steps in log noise (false position with the Illinois
    rule), aimed a little to the private side so that the bracket closes from both ends.

    Args:
        excess: Epsilon minus target, as a function of the noise.
        low: Guess below the answer; moved down until it is, or until ``_LEAST_NOISE``.
        high: Guess above the answer; moved up until it is.
        tolerance: Relative width of the final bracket.
    """
    above = excess(high)
    while above > 0:
        low, below = high, above
        high *= 2
        above = excess(high)
    else:
        low = min(low, high * (1 - tolerance))
        below = excess(low)
    while below <= 0:
        if low <= _LEAST_NOISE:
            return low
        high, above = low, below
        low = max(low / 1.5, _LEAST_NOISE)
        below = excess(low)
    weight_below, weight_above, rounds = below, above, 0
    while high / low - 1 > tolerance:
        span = math.log(high / low)
        rounds += 1
        if rounds % 4 == 0 or not math.isfinite(weight_below) or weight_above == weight_below:
            part = 0.5
        else:
            part = weight_below / (weight_below - weight_above)
        # Aim past the crossing by a third of the tolerance, towards the wider side of the bracket.
        nudge = tolerance / 3 / span
        part = part + nudge if part < 0.5 else part - nudge
        part = min(max(part, nudge), 1 - nudge)
        middle = low * math.exp(span * part)
        if not low < middle < high:
            break
        value = excess(middle)
        if value > 0:
            low, weight_below = middle, value
            weight_above /= 2
        else:
            high, weight_above = middle, value
            weight_below /= 2
    return high


def max_steps(
    budget: PrivacyBudget,
    *,
    sample_rate: float,
    noise_multiplier: float,
    accountant: AccountantName = "rdp",
    before: Plan = _NO_PLAN,
) -> int:
    """Return how many steps at a constant noise multiplier the budget allows.

    >>> budget = PrivacyBudget(target_epsilon=2.0, delta=1e-5)
    >>> max_steps(budget, sample_rate=0.01, noise_multiplier=1.0)
    881

    Guarantees:
        The epsilon after the returned number of steps is within the target, and after one more
        it is not. Poisson sampling and add-or-remove-one only.

    Args:
        budget: Target epsilon and delta.
        sample_rate: Probability in (0, 1] that one record enters a batch.
        noise_multiplier: Noise standard deviation divided by ``max_grad_norm``, > 0.
        accountant: ``rdp`` or ``pld``.
        before: Events charged already.
    Returns:
        Number of steps, 0 if not even one is allowed.
    Raises:
        BadInputError: More than 1e9 steps would be allowed.
    """
    rate = _validate.in_unit_interval("sample_rate", sample_rate, one=True)
    sigma = _validate.positive("noise_multiplier", noise_multiplier)
    _validate.one_of("accountant", accountant, ACCOUNTANTS)
    event = PoissonGaussian(sigma, rate)

    def allowed(steps: int) -> bool:
        plan = before + Plan((EventRun(event, steps),) if steps else ())
        epsilon = epsilon_of(plan, delta=budget.delta, accountant=accountant)
        return epsilon <= budget.target_epsilon

    if not allowed(0):
        return 0
    low = 0
    if accountant == "pld":
        low = max_steps(budget, sample_rate=rate, noise_multiplier=sigma, before=before)
    high = low + max(1, low // 2)
    while allowed(high):
        if high > _MAX_STEPS:
            raise BadInputError(
                f"more than {_MAX_STEPS:g} steps stay within epsilon={budget.target_epsilon:g}",
                because=f"noise_multiplier={sigma:g}, sample_rate={rate:g}",
                fix="lower the noise multiplier",
            )
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low

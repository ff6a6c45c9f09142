"""Noise that a privacy budget allows: the smallest multiplier, or start of a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsweep.foundation import validate
from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.privacy import rdp
from dpsweep.privacy.accountants import epsilon_and_order, epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import NO_PLAN, EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.events.multiset import multiset, plan_curve
from dpsweep.privacy.orders import is_sparse
from dpsweep.privacy.schedules import NoiseSchedule
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import ACCOUNTANTS, AccountantName, shown_delta

# The search for a start value never leaves this range: a plan that needs more noise than this
# trains nothing, one that needs less protects nothing.
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
_TOLERANCE: dict[AccountantName, float] = {"rdp": 1e-6, "pld": 4e-4}
_GAUSSIAN_TOLERANCE = 5e-9  # the curves of full batches are closed forms, not staircases
_FAR = 50.0  # |log(epsilon / target)| counts as this at most: Brent's method needs finite values


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
    before: Plan = NO_PLAN,
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
        ``result * (1 - 1e-3)`` the target is passed, but for targets so small (below .02) that the
        best Renyi order is above 1024, where orders are far apart. Holds for Poisson sampling and
        add-or-remove-one only.

    Args:
        budget: Target epsilon and delta.
        schedule: Shape of the noise multiplier over the steps.
        sample_rate: Probability in (0, 1] that one record enters a batch.
        steps: Optimizer steps of the schedule, at least 1.
        accountant: ``rdp``, or ``pld`` (tighter; seconds for a schedule that is not constant).
        before: Events of the same trial outside the schedule (a noisy mean, a count).
    Returns:
        Noise multiplier of the first step after the schedule's noisy prefix, if it has one.
    Raises:
        InfeasibleBudgetError: No start value up to 1e6 meets the budget.
    """
    validate.one_of("accountant", accountant, ACCOUNTANTS)
    rate = validate.in_unit_interval("sample_rate", sample_rate, one=True)
    count = validate.whole("steps", steps, low=1)
    prefix = schedule.num_prefix(count)
    factors: tuple[float, ...] = (1.0,)
    counts: tuple[int, ...] = (count,)
    if schedule.shape != "constant":  # which may have any number of steps, without an array
        factors, counts = _distinct(schedule.factors(count))
    elif prefix:
        factors, counts = (1.0, schedule.prefix_factor), (count - prefix, prefix)
    return calibrate_factors(budget, factors, counts, rate, accountant, before.merged())


def _distinct(factors: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the different factors, ascending, and how often each occurs."""
    values, counts = np.unique(factors, return_counts=True)
    return tuple(values.tolist()), tuple(counts.tolist())


@lru_cache(maxsize=1024)
def calibrate_factors(
    budget: PrivacyBudget,
    factors: tuple[float, ...],
    counts: tuple[int, ...],
    sample_rate: float,
    accountant: AccountantName = "rdp",
    before: Plan = NO_PLAN,
) -> float:
    """Return the smallest ``start`` such that ``counts[i]`` steps at noise ``start * factors[i]``
    and ``before`` together meet the budget; ``calibrate_noise_schedule`` says the rest.
    """
    target, delta = budget.target_epsilon, budget.delta

    def epsilon(start: float) -> float:
        plan = before + _plan(start, factors, counts, sample_rate)
        return epsilon_of(plan, delta=delta, accountant=accountant)

    def is_feasible() -> bool:
        """Ask the most noise, first with its least multiplier in all steps: that is one curve."""
        most = before + _plan(_MOST_NOISE, (1.0,), (sum(counts),), sample_rate)
        if epsilon_of(most, delta=delta, accountant=accountant) <= target:
            return True
        return epsilon(_MOST_NOISE / min(factors)) <= target

    spent = epsilon_of(before, delta=delta, accountant=accountant)
    if spent >= target or not is_feasible():
        raise InfeasibleBudgetError(
            f"no noise multiplier keeps {sum(counts)} steps within epsilon={target:g} at "
            f"delta={shown_delta(delta)}",
            because=f"sample_rate={sample_rate:g}, {accountant}, {budget.neighboring_relation}"
            + (
                f"; the events before already cost epsilon={shown_epsilon(spent)}"
                if len(before)
                else ""
            ),
            fix="raise the epsilon, or lower the cost of what comes before"
            if len(before)
            else "raise the epsilon",
        )
    if accountant == "rdp":
        return _calibrate_rdp(budget, factors, counts, sample_rate, before, epsilon)
    try:  # the Renyi bound is never below the PLD accountant's: its noise is on the private side
        high = calibrate_factors(budget, factors, counts, sample_rate, "rdp", before)
    except (
        InfeasibleBudgetError
    ):  # it has an epsilon of its own at a tiny delta, whatever the noise
        high = _MOST_NOISE / min(factors)
    return _smallest(epsilon, target, high * 0.85, high, _TOLERANCE["pld"])


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
    epsilon: Callable[[float], float],
) -> float:
    """Calibrate on a few orders around the best one, then check on all of them.

    A minimum over fewer orders is a larger epsilon, so every start found is on the private side.
    """
    target, delta = budget.target_epsilon, budget.delta
    grid = rdp.orders_at(len(rdp.HIGH_ORDERS))
    spent, scale, weight = multiset(before), np.array(factors), np.array(counts, dtype=np.float64)

    def bound(
        start: float,
        orders: NDArray[np.float64],
        scale: NDArray[np.float64],
        weight: NDArray[np.float64],
    ) -> tuple[float, float]:
        """Return the epsilon of these orders alone, and the best among them."""
        curves = rdp.poisson_gaussian_rdp(start * scale, sample_rate, orders)
        curve = plan_curve(spent, orders) + weight @ curves
        epsilons, best = rdp.epsilons(curve[None, :], orders, delta)
        return float(epsilons[0]), float(orders[best[0]])

    def restricted(
        orders: NDArray[np.float64], scale: NDArray[np.float64], weight: NDArray[np.float64]
    ) -> Callable[[float], float]:
        return lambda start: bound(start, orders, scale, weight)[0]

    # A first guess from at most 24 noise multipliers, each group at its smallest.
    groups = np.array_split(np.arange(len(scale)), min(24, len(scale)))
    few = np.array([scale[group[0]] for group in groups])
    few_weight = np.array([weight[group].sum() for group in groups])
    tolerance, most = _TOLERANCE["rdp"], _MOST_NOISE / min(factors)
    # At a tiny delta the first orders have an epsilon of their own, whatever the noise.
    for orders in (rdp.ORDERS, grid):
        if bound(most, orders, few, few_weight)[0] <= target:
            break
    else:
        return _smallest(epsilon, target, most * 0.85, most, tolerance)
    high = _smallest(restricted(orders, few, few_weight), target, 0.5, 1.0, 1e-2)
    order = bound(high, orders, few, few_weight)[1]
    for _ in range(6):
        fast = restricted(_orders_beside(order, grid), scale, weight)
        high = _smallest(fast, target, high * 0.98, high, tolerance / 2)
        if epsilon(high) <= target < epsilon(high * (1 - tolerance)):
            return high
        order = _best_order(high, factors, counts, sample_rate, before, delta)
    # The best order jumps about (a bound that drops to zero at once): search on all orders.
    return _smallest(epsilon, target, high * 0.9, high, tolerance)


def _orders_beside(order: float, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an order with those beside it, of the grid and, where that is sparse, off it."""
    index = int(np.searchsorted(grid, order))
    near = grid[max(0, index - 2) : index + 3]
    if is_sparse(order):
        near = np.union1d(near, np.rint(order * np.array([0.97, 0.99, 1.0, 1.01, 1.03])))
    return near


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


def _smallest(
    epsilon: Callable[[float], float], target: float, low: float, high: float, tolerance: float
) -> float:
    """Return a noise whose epsilon is within ``target``, close to the least such noise.

    Brent's method on log epsilon against log noise, which is nearly a straight line; then one step
    of half the tolerance to the private side, checked.

    Args:
        epsilon: Falls in the noise; a staircase is fine.
        target: Largest epsilon allowed.
        low: Guess below the answer; moved down until it is, or until ``_LEAST_NOISE``.
        high: Guess above the answer; moved up until it is.
        tolerance: Relative distance to the least noise.
    """

    @cache
    def height(log_noise: float) -> float:
        ratio = epsilon(math.exp(log_noise)) / target
        if ratio <= 0:
            return -_FAR
        # Infinite, or not a number: both are over the target.
        return min(max(math.log(ratio), -_FAR), _FAR) if ratio < math.inf else _FAR

    bottom, top = math.log(low), math.log(high)
    while height(top) > 0:
        bottom, top = top, top + math.log(2)
    while height(bottom) <= 0:
        if bottom < math.log(_LEAST_NOISE):
            return math.exp(bottom)
        bottom, top = bottom - math.log(1.5), bottom
    if height(top) == 0:
        return math.exp(top)
    from scipy import optimize  # it takes a quarter of a second, which most processes never need

    root = optimize.brentq(height, bottom, top, xtol=tolerance / 4)
    aim = min(root + tolerance / 2, top)
    if height(aim) <= 0:
        return math.exp(aim)
    while top - bottom > tolerance:
        middle = (bottom + top) / 2
        bottom, top = (middle, top) if height(middle) > 0 else (bottom, middle)
    return math.exp(top)


@lru_cache(maxsize=1024)
def gaussian_noise(
    budget: PrivacyBudget, *, steps: int, accountant: AccountantName = "rdp"
) -> float:
    """Return the smallest noise multiplier of ``steps`` full-batch Gaussians within ``budget``.

    >>> budget = PrivacyBudget(target_epsilon=1.356467, delta=1e-5)
    >>> round(gaussian_noise(budget, steps=200, accountant="pld"), 4)
    40.0

    Guarantees:
        ``epsilon_of(plan) <= target_epsilon``: the result is the private end of the bracket. With
        ``result * (1 - 1e-8)`` the target is passed. Full batches and add-or-remove-one only.

    Args:
        budget: Target epsilon and delta.
        steps: Sums released over the whole trial, at least 1.
        accountant: ``rdp`` or ``pld`` (exact here).
    Returns:
        Noise standard deviation divided by the L2 sensitivity.
    Raises:
        InfeasibleBudgetError: No noise multiplier up to 1e6 meets the budget.
    """
    count = validate.whole("steps", steps, low=1)
    validate.one_of("accountant", accountant, ACCOUNTANTS)

    def epsilon(sigma: float) -> float:
        plan = Plan((EventRun(Gaussian(sigma), count),))
        return epsilon_of(plan, delta=budget.delta, accountant=accountant)

    if not epsilon(_MOST_NOISE) <= budget.target_epsilon:
        raise InfeasibleBudgetError(
            f"no noise multiplier up to {_MOST_NOISE:g} keeps {count} full-batch steps within "
            f"epsilon={budget.target_epsilon:g} at delta={shown_delta(budget.delta)}",
            because=f"{accountant}, {budget.neighboring_relation}",
            fix="raise the epsilon",
        )
    guess = math.sqrt(count)
    return _smallest(epsilon, budget.target_epsilon, guess / 2, guess, _GAUSSIAN_TOLERANCE)

"""Declared records, batches and steps: what a configuration says of them, and what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.foundation.errors import InfeasibleBudgetError, Mistake
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan, PoissonGaussian
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.trainables.method import PlanContext


def num_private_of(hparams: Mapping[str, Any], declared: int) -> int:
    """Return the public number of private records that a configuration trains on.

    >>> num_private_of({"train.num_private": 500}, 2000)
    500
    >>> num_private_of({"train.num_private": None}, 2000)
    2000
    """
    wanted = hparams["train.num_private"]
    return declared if wanted is None else min(wanted, declared)


def fitted_batch(default: int, num_private: int) -> int:
    """Return a default batch, or an eighth of the declared records where they are fewer.

    >>> fitted_batch(256, 1437), fitted_batch(8192, 448)
    (256, 56)
    """
    return default if default <= num_private else max(1, num_private // 8)


def batch_problems(
    values: Mapping[str, Sequence[Any]], num_private: int, method: str
) -> list[Mistake]:
    """Return a mistake if the largest batch of a space is more than the declared records.

    Args:
        values: As for ``Method.preflight``.
        num_private: Declared (public) number of private records.
        method: Name of the method.
    """
    largest = max(values.get("batch.expected", [0]))  # a default fits (``complete``)
    if largest <= num_private:
        return []
    wrong = f"{largest} is larger than the {num_private} declared private records, for {method}"
    return [Mistake("batch.expected", wrong, f"at most {num_private}")]


def sample_rate_of(hparams: Mapping[str, Any], num_private: int) -> float:
    """Return the probability with which one record enters a batch.

    Args:
        hparams: ``batch.sample_rate``, ``batch.expected`` and ``train.num_private``.
        num_private: Declared (public) number of private records.
    Returns:
        A number in (0, 1].
    Raises:
        InfeasibleBudgetError: The expected batch is larger than the declared number of records.

    >>> hparams = {"batch.sample_rate": None, "batch.expected": 64, "train.num_private": None}
    >>> sample_rate_of(hparams, 256)
    0.25
    """
    num_private = num_private_of(hparams, num_private)
    if num_private < 1:
        raise InfeasibleBudgetError(
            f"there is no private record to train on (declared: {num_private})",
            fix="declare fewer validation, test and public records",
        )
    rate = hparams["batch.sample_rate"]
    if rate is not None:
        return float(rate)
    expected = int(hparams["batch.expected"])
    if expected > num_private:
        raise InfeasibleBudgetError(
            f"batch.expected={expected} is larger than the {num_private} declared private records",
            fix=f"batch.expected <= {num_private}",
        )
    return expected / num_private


def num_steps_of(hparams: Mapping[str, Any], sample_rate: float) -> int:
    """Return ``train.max_steps``, or the steps of ``train.epochs`` expected passes (at least 1).

    >>> num_steps_of({"train.max_steps": None, "train.epochs": 2.0}, 0.25)
    8
    """
    if hparams["train.max_steps"] is not None:
        return int(hparams["train.max_steps"])
    return max(1, round(hparams["train.epochs"] / sample_rate))


def cut_to_budget(plan: Plan, num_before: int, context: PlanContext) -> Plan:
    """Return a plan up to the last position whose epsilon is within the budget.

    Args:
        plan: Steps of a given noise multiplier, and what comes before them.
        num_before: Positions before the first step.
        context: Has the budget.
    Raises:
        InfeasibleBudgetError: Not one step is.
    """
    budget = context.budget
    clock = EpsilonClock(plan, delta=budget.delta, accountant=context.accountant)
    allowed = clock.last_allowed(budget.target_epsilon)
    first = num_before + 1
    if allowed < first:
        cost, event = shown_epsilon(clock.epsilon_after(first)), plan.at(num_before)
        assert isinstance(event, PoissonGaussian)
        raise InfeasibleBudgetError(
            f"the first step already costs epsilon={cost} at delta={shown_delta(budget.delta)}, "
            f"over {budget.target_epsilon:g}",
            because=f"noise_multiplier={event.noise_multiplier:g}, "
            f"sample_rate={event.sample_rate:g} "
            f"({context.accountant}, {budget.neighboring_relation})"
            + (f", after {num_before} other events" if num_before else ""),
            fix="raise noise.noise_multiplier or leave it out, so that it is calibrated",
        )
    return plan.slice(0, allowed)

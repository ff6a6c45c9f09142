"""Whether a plan leaves any signal over its noise, from public numbers alone."""

from __future__ import annotations

import math

from dpsweep.foundation.errors import InfeasibleBudgetError
from dpsweep.foundation.words import counted
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.plan import TRAINING
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta

#: Below it a configuration is refused: its releases tell the data set hardly from an empty one.
HOPELESS = 1.0
#: Below it `dpsweep plan` warns.
FAINT = 10.0


def signal_to_noise(plan: Plan, num_records: int) -> float | None:
    """Return the most that the records can move all steps together, over the noise on that way.

    A step adds noise of standard deviation ``sigma * C`` to each coordinate of a sum to which each
    of about ``q * n`` records contributes at most ``C``: in the best case, all of them in one
    direction, the same at every step, it carries ``q * n / sigma`` standard deviations of signal.
    Over the steps t, weighted as well as possible, that is

        S = sqrt(sum_t (q_t * n / sigma_t)^2).

    It is n times the parameter mu of the steps as a Gaussian mechanism (Dong, Roth & Su 2019,
    https://arxiv.org/abs/1905.02383), so by group privacy *all* records together are protected by
    S-Gaussian DP: where S < 1, the best test between these data and no data at all gains less than
    0.39 over a guess, and no training can do better than that test. Real gradients disagree and
    have many coordinates, so useful plans have an S of many tens.

    >>> from dpsweep.privacy.events import EventRun, PoissonGaussian
    >>> steps = EventRun(PoissonGaussian(noise_multiplier=4000.0, sample_rate=0.1), 100)
    >>> signal_to_noise(Plan((steps,)), 2000)
    0.5

    Args:
        plan: Of one trial.
        num_records: Declared number of records that it trains on.
    Returns:
        S; None for a plan without training steps on private records, or with one whose noise is no
        Gaussian's (``PrivacyEvent.relative_noise``).
    """
    total, has_steps = 0.0, False
    for run in plan.runs:
        if run.phase not in TRAINING or run.part != "private":
            continue
        share, noise = run.event.expected_share(), run.event.relative_noise()
        if noise is None:
            return None
        has_steps = True
        if noise == 0:
            return math.inf
        total += run.count * (share * num_records / noise) ** 2
    return math.sqrt(total) if has_steps else None


def refuse_drowned(signal: float | None, plan: Plan, *, epsilon: float, delta: float) -> None:
    """Refuse a plan in which noise drowns whatever the records say.

    Args:
        signal: From ``signal_to_noise``.
        plan: Of the trial.
        epsilon: What it costs.
        delta: At which it does.
    Raises:
        InfeasibleBudgetError: ``signal`` is below ``HOPELESS``.
    """
    if signal is not None and signal < HOPELESS:
        raise InfeasibleBudgetError(
            f"noise drowns the data at epsilon={shown_epsilon(epsilon)}, delta="
            f"{shown_delta(delta)}: were all declared records of one mind, "
            f"{counted(len(plan), 'step')} would carry {signal:.2g} standard deviations "
            "of the noise",
            fix="a larger privacy.trial_epsilon (or noise.target_epsilon), or more records; batch "
            "and steps change little where the noise is solved for",
        )

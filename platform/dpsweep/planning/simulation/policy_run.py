"""A run of one policy: how a simulated sweep went under it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyRun:
    """How a sweep went under one policy.

    Attributes:
        policy: Its name.
        started: Trials that were admitted.
        finished: Those that ran to their end.
        stopped: Those that the policy ended, or paused for good.
        infeasible: Configurations without a plan within the budget.
        steps: Sum of the steps that all trials ran, stopped ones included.
        composed_epsilon: Epsilon of everything that was run, composed: the Renyi cost that the
            study's filter has committed, converted at its order; without a filter an indication, at
            the best of a few orders. Infinite if something that ran has no finite epsilon.
        accountant: Of that epsilon.
        hours: Simulated time.
        best: Best score that a finished trial reported, or None.
        full_score: Its score at full length without observation noise.
        best_full: The largest such score of any configuration that this policy drew.
        regret: How far ``full_score`` is from the best configuration that any of the compared
            policies drew, at full length and without noise; 0 is perfect.
        end_reason: Why no further trial was started.
        sampling: How records enter the trials' steps.
        seconds: Real seconds of the simulation, planning included where it was the first.
    """

    policy: str
    started: int
    finished: int
    stopped: int
    infeasible: int
    steps: int
    composed_epsilon: float
    accountant: str
    hours: float
    best: float | None
    full_score: float | None
    best_full: float | None
    regret: float | None
    end_reason: str
    sampling: str
    seconds: float

"""The values that cross borders while a study runs: reports, states and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class TrialState(str, Enum):
    """Where a trial stands. Every state but RUNNING is final within one run of the command."""

    RUNNING = "running"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"


class Decision(str, Enum):
    """What a policy says to a report."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True)
class TrialReport:
    """What a trial says at a report point; every value is public or itself DP.

    Attributes:
        trial: Trial number within the study, from 0.
        step: Plan position (privacy events executed by the current model).
        metrics: Metric name to value, names as in ``dpsweep.tracking.schema``.
        epsilon: Epsilon of everything ever charged to this trial, crashed segments included,
            at the study's delta; never decreases. Infinite for a trial that is not private.
        next_epsilon: Epsilon that the next report will show, or None when this is the last.
        done: True when the trial has run its plan or reached its cap.
        reason: Why it is done (empty otherwise).
        wall_s: Seconds of training and evaluation in this incarnation of the trial.
        charged: Number of events ever charged to the trial; at least ``step``.
        value: Best value of the study's metric so far, or None before the first one.
        best_step: Step of the checkpoint that has it.
        failure: What went wrong, for a trial that ends by an error (empty otherwise).
    """

    trial: int
    step: int
    metrics: Mapping[str, float]
    epsilon: float
    next_epsilon: float | None = None
    done: bool = False
    reason: str = ""
    wall_s: float = 0.0
    charged: int = 0
    value: float | None = None
    best_step: int = 0
    failure: str = ""

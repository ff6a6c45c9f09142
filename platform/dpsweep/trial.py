"""The values that cross borders while a study runs: reports, states and decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class TrialState(str, Enum):
    """Where a trial stands. RUNNING and PAUSED may still change; the others are final."""

    RUNNING = "running"
    PAUSED = "paused"
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
        metrics: Metric name to value, names as in ``dpsweep.tracking.schema``: of the model at
            ``step``.
        epsilon: Epsilon of everything ever charged to this trial, crashed segments included,
            at the study's delta; never decreases. Infinite for a trial that is not private.
        rung: Number of the scheduler's rungs that the trial has reached (0: none, or no rungs); a
            report is made exactly where another one is reached.
        skipped: Number of these rungs that the first training step passed: the trial is judged at
            none of them.
        next_epsilon: Epsilon that the next report will show, or None when this is the last.
        done: True when the trial has run its plan or reached its cap.
        reason: Why it is done (empty otherwise).
        wall_s: Seconds of training and evaluation in this incarnation of the trial; 0 where run
            times may not leave the actor.
        charged: Number of events ever charged to the trial; at least ``step``.
        value: Best value of the study's metric so far, or None before the first one.
        best_step: Step of the checkpoint that has it.
        delivered: Metrics of the model that the trial delivers if this is its last report: of the
            checkpoint at ``best_step``, or of the model at ``step`` where nothing ranks them. Once
            the trial is done, its test scores are among them.
        unscored: Which scores could not be computed, and why (empty otherwise).
        failure: What went wrong, for a trial that ends by an error (empty otherwise).
        note: What this process of the trial found damaged, and what it uses instead (or empty).
    """

    trial: int
    step: int
    metrics: Mapping[str, float]
    epsilon: float
    next_epsilon: float | None = None
    rung: int = 0
    done: bool = False
    reason: str = ""
    wall_s: float = 0.0
    charged: int = 0
    value: float | None = None
    best_step: int = 0
    delivered: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    note: str = ""
    skipped: int = 0
    unscored: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a policy says to a report, and why; one line of the decision log.

    Attributes:
        decision: What happens to the trial.
        rung: Number of rungs the trial has reached where it was judged, or None: not judged.
        value: The score it was judged by.
        cutoff: The score that it had to reach, or None where there was none yet.
        reason: One sentence.
    """

    decision: Decision
    rung: int | None = None
    value: float | None = None
    cutoff: float | None = None
    reason: str = ""


def report_interval(num_steps: int, every: int | None, points: int) -> int:
    """Return the steps between two reports: ``every``, or what gives ``points`` of them.

    >>> report_interval(95, None, 10), report_interval(95, 7, 10)
    (10, 7)
    """
    return every or max(1, math.ceil(num_steps / points))

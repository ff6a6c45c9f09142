"""The values that cross borders while a study runs: reports, states and decisions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from dpsweep.foundation.errors import DamagedStudyError
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.records import checked_json, read_checked_json
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.plan import Part

if TYPE_CHECKING:
    from dpsweep.ledgers.study import StudyLedger
    from dpsweep.privacy.composition.base import Composition


class TrialState(StrEnum):
    """Where a trial stands. RUNNING and PAUSED may still change; the others are final."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"
    INFEASIBLE = "infeasible"


#: States of a trial that may still change.
MOVING = (TrialState.RUNNING, TrialState.PAUSED)
#: Why a study ends that has started as many trials as were wanted; it goes on if more are.
ALL_STARTED = "all trials were started"
#: Why a search ends whose launches have run for as long as they may; it goes on if they may longer.
TIME_PASSED = "search.max_time has passed"
#: Why a launch has failed that started no further trials; a person's launch goes on.
MOSTLY_FAILED = "nearly all of its trials failed"


#: How the reason ends of a trial that waited to be continued when the study's budget was used up.
NO_BUDGET_LEFT = "no budget was left for it"


#: How the reason begins of a trial that ended because its parameters are not finite.
DIVERGED = "diverged"


def is_cut_short(reason: str, step: int, num_steps: int) -> bool:
    """Say whether a model that diverged has ended its trial before the plan did.

    Where that happens depends on the records, so what was spent by then is no claim: what was
    promised beforehand is.

    >>> is_cut_short("diverged: at step 10", 10, 20), is_cut_short("diverged: at the end", 20, 20)
    (True, False)
    """
    return reason.startswith(DIVERGED) and not 0 < num_steps <= step


class Decision(StrEnum):
    """The answer of a policy to a report."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True)
class TrialReport:
    """The report of a trial at a report point; every value is public or itself DP.

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
        memory_mb: Peak memory of its process, or of its share of a GPU, in MiB; 0 as there.
        charged: Number of events ever charged to the trial; at least ``step``.
        value: Best value of the study's metric so far, or None before the first one.
        best_step: Step of the checkpoint that has it.
        delivered: Metrics of the model that the trial delivers if this is its last report: of the
            checkpoint at ``best_step``, or of the model at ``step`` where nothing ranks them. Once
            the trial is done, its test scores are among them.
        unscored: Which scores could not be computed, and why (empty otherwise).
        failure: What went wrong, for a trial that ends by an error (empty otherwise).
        note: What this process of the trial found damaged, and what it uses instead (or empty).
        unwritten: What of the trial cannot be written, on a full disk say (empty otherwise): the
            launch ends, and the next one continues the trial.
        changed: That its own network is another one by now (empty otherwise); the same follows.
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
    memory_mb: float = 0.0
    charged: int = 0
    value: float | None = None
    best_step: int = 0
    delivered: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    note: str = ""
    skipped: int = 0
    unscored: str = ""
    unwritten: str = ""
    changed: str = ""


@dataclass(frozen=True)
class Verdict:
    """The judgement of a policy on a report, and why; one line of the decision log.

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


@dataclass(frozen=True)
class TrialTask:
    """One admitted trial: what an actor needs to execute or continue it.

    Attributes:
        trial: Trial number.
        method: Name in the table of methods.
        hparams: Every hyperparameter of the method with its value.
        plan: The privacy events, frozen at admission.
        planned_epsilon: Epsilon of the whole plan at the study's delta (inf if not private).
        is_private: False for a method that makes no privacy claim.
        validation_plan: Noisy releases of the score, at most one a report.
        records: ``public`` for a trial that trains on public records only, which costs nothing;
            ``rest`` for the final run after a search on a part of the private ones.
        seed: Seed of its public randomness where it is not the study's (and then kept secret).
        inherited: Events of the run that its model starts from, up to the release it starts at.
            They stand on that run's ledger: the study pays them once, while every trial's epsilon
            covers them.
        releases: Epsilons, ascending, whose last models other trials may start from: of a start.
        barrier: Position at which it waits until it is promoted, and reserves no more than it takes
            to get there; 0: it has none.
        barrier_scores: Number of releases of its score until then, that one included.
        code: SHA-256 of the file of a network of the user's own (``model.name``); empty for others.
    """

    trial: int
    method: str
    hparams: Mapping[str, Any]
    plan: Plan
    planned_epsilon: float
    is_private: bool
    validation_plan: Plan = field(default_factory=Plan)
    records: Literal["private", "public", "rest"] = "private"
    seed: int | None = None
    inherited: Plan = field(default_factory=Plan)
    releases: tuple[float, ...] = ()
    barrier: int = 0
    barrier_scores: int = 0
    code: str = ""

    @property
    def part(self) -> Part:
        """The part of the records that is charged for the positions of its plan."""
        return self.records

    @property
    def charges(self) -> Plan:
        """The charge of its positions: nothing, if it trains on public records in their place."""
        if self.records == "public":
            return self.plan.labelled("public")
        return self.plan.moved("private", self.part)

    @property
    def full_plan(self) -> Plan:
        """Everything the trial may charge: its positions and the releases of its score."""
        return self.charges + self.validation_plan

    @property
    def sampling(self) -> str:
        """How all that is stated of it is drawn: its start, its steps and its noisy scores."""
        return (self.inherited + self.full_plan).sampling

    @property
    def stages(self) -> tuple[Plan, ...]:
        """The full plan in parts: up to the barrier and from there on; one part without it."""
        if not self.barrier:
            return (self.full_plan,)
        steps, scores = self.charges, self.validation_plan
        return (
            steps.slice(0, self.barrier) + scores.slice(0, self.barrier_scores),
            steps.slice(self.barrier, len(steps)) + scores.slice(self.barrier_scores, len(scores)),
        )

    def refusal(self, composition: Composition | None) -> str:
        """Say why no budget at all would admit it; empty: one might."""
        if composition is None:
            return ""
        return next(filter(None, map(composition.refusal, self.stages)), "")

    @property
    def digest(self) -> str:
        """SHA-256 of ``to_json``, in hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def reserve(self, ledger: StudyLedger, *, is_promoted: bool = False) -> bool:
        """Reserve what it may charge now, and write down what it is to do (``digest``).

        Args:
            ledger: The study's.
            is_promoted: Let it pass its barrier: reserve all of its plan.
        Returns:
            False if it does not fit into the study's budget; nothing was written then.
        Raises:
            LedgerError: See ``StudyLedger.reserve``.
        """
        at_first = self.stages[0] if self.barrier and not is_promoted else None
        return ledger.reserve(
            self.trial,
            self.full_plan,
            epsilon=self.planned_epsilon,
            task=self.digest,
            at_first=at_first,
        )

    def to_json(self) -> str:
        """Return the task as one JSON document with a checksum of itself."""
        return checked_json(
            {
                "trial": self.trial,
                "method": self.method,
                "hparams": dict(self.hparams),
                "plan": self.plan.merged().to_json(),
                "planned_epsilon": self.planned_epsilon if self.is_private else None,
                "is_private": self.is_private,
                "validation_plan": self.validation_plan.merged().to_json(),
                "records": self.records,
                "seed": self.seed,
                "inherited": self.inherited.merged().to_json(),
                "releases": list(self.releases),
                # Older tasks have none, and keep their digests.
                **({"barrier": self.barrier} if self.barrier else {}),
                **({"barrier_scores": self.barrier_scores} if self.barrier_scores else {}),
                **({"code": self.code} if self.code else {}),
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str) -> TrialTask:
        """Rebuild a task that ``to_json`` wrote.

        Raises:
            ValueError: The document is damaged.
        """
        raw = read_checked_json(text.encode(), known=[part.name for part in fields(cls)])
        epsilon = float("inf") if raw["planned_epsilon"] is None else raw["planned_epsilon"]
        names = ("plan", "validation_plan", "inherited")
        plans = {key: Plan.from_json(raw.get(key, [])) for key in names}
        releases = tuple(raw.get("releases", ()))
        return cls(**{**raw, **plans, "releases": releases, "planned_epsilon": epsilon})


def read_task(path: FilePath) -> TrialTask:
    """Return the task of a ``trial.json``.

    Raises:
        DamagedStudyError: The file was deleted or damaged.
    """
    try:
        return TrialTask.from_json(read_file(path).decode())
    except (OSError, ValueError, KeyError, TypeError) as error:
        state = "missing" if isinstance(error, FileNotFoundError) else "damaged"
        raise DamagedStudyError(
            f"{path} is {state}",
            because="it holds the configuration and the plan of its trial",
            fix="restore it, or run the study again, which looks for them in its journal",
        ) from error

"""Probes: a range is tried from bound to bound, its best point is refined, and one run gets it.

    points of the range -> spares beyond a bound that is best -> vertex of a parabola -> final run

Which run comes next is a function of the probes' values and scores alone, so a search that was
killed goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dpsweep.foundation.errors import BadInputError, SweepError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.study.trial import TrialReport, TrialState, TrialTask

_ALL_FAILED = "no probe has a score, so there is no value for a final run"


@dataclass(frozen=True)
class Probe:
    """A probe that has ended.

    Attributes:
        number: Of its trial.
        value: Of the searched parameter; positive.
        score: By the search's metric; None if it has none: it failed.
    """

    number: int
    value: float
    score: float | None


@dataclass(frozen=True)
class NextRun:
    """What is to be run after some probes.

    Attributes:
        value: Of the searched parameter.
        is_final: Whether it is the final run, and not a spare probe.
        best: The probe with the best score.
        reason: Why this value, in a sentence.
    """

    value: float
    is_final: bool
    best: Probe
    reason: str


def next_run(
    probes: Sequence[Probe], *, ratio: float, spares: int, maximize: bool = True
) -> NextRun | None:
    """Return what comes after the probes of a range; None if none of them has a score.

    A spare goes one point beyond the range where its end is the best, or again to a neighbour of
    the best point that has failed. The final value is the vertex of the parabola through the best
    score and its two neighbours over log value, at most one point away; without spares left, an end
    that is best counts as its inner neighbour, whose parabola then reaches to the end at most.

    >>> scores = {1.0: 0.5, 10.0: 0.7, 100.0: 0.6}
    >>> probes = [Probe(i, value, score) for i, (value, score) in enumerate(scores.items())]
    >>> round(next_run(probes, ratio=10.0, spares=0).value, 2)
    14.68

    Args:
        probes: All that have ended; several may have had the same value.
        ratio: Of one point's value to that before.
        spares: Probes that may still be run.
        maximize: Whether a high score is good.
    """
    sign = 1.0 if maximize else -1.0
    by_value: dict[float, Probe] = {}
    for probe in probes:
        if probe.score is not None:
            by_value.setdefault(probe.value, probe)
    scored = [by_value[value] for value in sorted(by_value)]
    if not scored:
        return None
    scores = [sign * (probe.score or 0.0) for probe in scored]
    index = int(np.argmax(scores))
    best = scored[index]
    if spares:
        value, reason = _spare(scored, index, ratio)
        if value is not None:
            return NextRun(value, False, best, reason)
    if len(scored) < 3:
        few = f"trial {best.number} has the best score of {len(scored)}, too few for a parabola"
        return NextRun(best.value, True, best, few)
    middle = min(max(index, 1), len(scored) - 2)
    around = scored[middle - 1 : middle + 2]
    value = _vertex([p.value for p in around], scores[middle - 1 : middle + 2])
    numbers = ", ".join(str(probe.number) for probe in around)
    reason = (
        f"trial {best.number} has the best score of {len(scored)}; the parabola through trials "
        f"{numbers} has its vertex at {value:.4g}"
    )
    if middle != index:
        reason += "; the best is at an end of the range: a wider one may hold a better value"
    return NextRun(value, True, best, reason)


def _spare(scored: Sequence[Probe], index: int, ratio: float) -> tuple[float | None, str]:
    """Return where a spare probe is of use, and why."""
    best = scored[index]
    if index == 0:
        return best.value / ratio, f"trial {best.number} is best at the lower end of the range"
    if index == len(scored) - 1:
        return best.value * ratio, f"trial {best.number} is best at the upper end of the range"
    for other, missing in (
        (scored[index - 1], best.value / ratio),
        (scored[index + 1], best.value * ratio),
    ):
        if abs(math.log(other.value / best.value)) > 1.5 * math.log(ratio):
            return missing, f"a neighbour of trial {best.number}, the best, has failed"
    return None, ""


def _vertex(values: Sequence[float], scores: Sequence[float]) -> float:
    """Return where the parabola through three points is highest, within the outer two.

    Where it opens upwards, or is flat, that is the best of the three.
    """
    x = np.log(values)
    slopes = np.diff(scores) / np.diff(x)
    curvature = (slopes[1] - slopes[0]) / (x[2] - x[0])
    if not curvature < 0:
        return float(values[int(np.argmax(scores))])
    vertex = (x[0] + x[1]) / 2 - slopes[0] / (2 * curvature)
    return float(np.exp(np.clip(vertex, x[0], x[2])))


class ProbePlans(Protocol):
    """The runs as tasks (``dpsweep.planning.costs.probing.Probing``)."""

    @property
    def points(self) -> Sequence[float]:
        """Values of the probes, ascending."""

    @property
    def ratio(self) -> float:
        """Of one point's value to that before."""

    def probe(self, number: int, value: float) -> TrialTask:
        """Return a probe as a task."""

    def final(self, value: float) -> TrialTask:
        """Return the final run as a task."""


@dataclass
class ProbeSource:
    """Hands out probes, spares and the final run (``TaskSource``).

    Attributes:
        plans: The runs as tasks.
        spares: Probes that there may be beyond the points of the range.
        maximize: Whether a high score is good.
        ledger: The study's.
        admit: Called with a task whose cost is reserved.
        tell: Told why a spare or the final run has its value.
        waiting: Trials of an earlier launch, to be continued first.
        values: Value of every probe that was admitted, by number.
        ended: Probes that have ended, by number.
        is_final_begun: Whether the final run was admitted before.
        end_reason: Why nothing more will come; empty as long as something may.
    """

    plans: ProbePlans
    spares: int
    maximize: bool
    ledger: StudyLedger
    admit: Callable[[TrialTask], None]
    tell: Callable[[NextRun], None]
    waiting: list[TrialTask] = field(default_factory=list)
    values: dict[int, float] = field(default_factory=dict)
    ended: dict[int, Probe] = field(default_factory=dict)
    is_final_begun: bool = False
    end_reason: str = ""

    def __post_init__(self) -> None:
        if self.is_final_begun:
            self.end_reason = "the final run has ended"

    @property
    def is_exhausted(self) -> bool:
        """True when there will be no further task."""
        return bool(self.end_reason) and not self.waiting

    def next_task(self, *, num_running: int) -> TrialTask | None:
        """Return the next run, or None to wait for those that are running."""
        if self.waiting:
            return self.waiting.pop(0)
        points = self.plans.points
        while not self.end_reason:
            number = len(self.values)
            if number < len(points):
                return self._start(self.plans.probe(number, points[number]), points[number])
            if num_running:
                return None
            task = self._after_probes(number)
            if task is not None:
                return task
        return None

    def _after_probes(self, number: int) -> TrialTask | None:
        """Return the next spare, or the final run; None where there is nothing to run."""
        left = max(len(self.plans.points) + self.spares - number, 0)
        probes = [self.ended[trial] for trial in sorted(self.ended)]
        run = next_run(probes, ratio=self.plans.ratio, spares=left, maximize=self.maximize)
        if run is None:
            self.end_reason = _ALL_FAILED
            return None
        self.tell(run)
        if run.is_final:
            self.end_reason = "the final run has ended"
            return self._reserved(self.plans.final(run.value))
        try:
            task = self.plans.probe(number, run.value)
        except BadInputError:  # a value that the method does not take
            self.values[number], self.ended[number] = run.value, Probe(number, run.value, None)
            self.spares = 0
            return None
        return self._start(task, run.value)

    def _start(self, task: TrialTask, value: float) -> TrialTask:
        task = self._reserved(task)
        self.values[task.trial] = value
        return task

    def _reserved(self, task: TrialTask) -> TrialTask:
        if not task.reserve(self.ledger):
            raise SweepError(
                f"run {task.trial} does not fit into what the study has declared",
                because="its ledger holds more than its own runs have taken",
                fix="start a new study under another name",
            )
        self.admit(task)
        return task

    def on_report(self, report: TrialReport) -> None:
        """Nothing to learn before the end."""

    def on_end(self, report: TrialReport, state: TrialState) -> None:
        """Keep the score of a probe that ran to its end."""
        value = self.values.get(report.trial)
        if value is not None:
            score = report.value if state is TrialState.FINISHED else None
            self.ended[report.trial] = Probe(report.trial, value, score)


def told(run: NextRun, name: str) -> str:
    """Return what a run of one searched parameter is, for people."""
    kind = "the final run" if run.is_final else "a spare probe"
    return f"{run.reason}; {kind} has {name}={run.value:.4g}"

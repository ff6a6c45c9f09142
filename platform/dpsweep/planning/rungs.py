"""Rungs and noise of a plan, before anything runs: where they fall, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.rungs import num_skipped, rung_epsilons, rung_positions
from dpsweep.privacy.signal_to_noise import FAINT
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.search_spaces.draws import bounds_of
from dpsweep.study.trial import TrialTask

if TYPE_CHECKING:
    from dpsweep.planning.preflight import Preflight

#: Configurations of extreme values that are planned besides those drawn.
NUM_EXTREME = 32
#: A rung in so small a share of a trial's steps compares models that have hardly begun.
EARLY = 0.05


@dataclass(frozen=True)
class RungFigures:
    """Where the trials of a space reach one rung.

    Attributes:
        rung: As the spec has it, in ``unit``.
        unit: ``epsilon`` or ``share``.
        steps: Smallest and largest step at which it is reached, with the steps of that trial; None
            where none reaches it.
        reached: Share of the planned configurations that reach it before their end.
        at_once: Share of them whose first step passes it, and which are not judged there.
        early: Share of them that reach it within ``EARLY`` of their steps, the first one aside.
    """

    rung: float
    unit: str
    steps: tuple[tuple[int, int], tuple[int, int]] | None
    reached: float
    at_once: float
    early: float

    def __str__(self) -> str:
        unit = "epsilon " if self.unit == "epsilon" else ""
        of = "" if self.unit == "epsilon" else " of a trial's own epsilon"
        if self.steps is None:
            return f"{unit}{self.rung:g}{of}: no configuration reaches it"
        (first, of_first), (last, of_last) = self.steps
        text = f"{unit}{self.rung:g}{of}: step {first} of {of_first}"
        if (first, of_first) != (last, of_last):
            text += f" to step {last} of {of_last}"
        if self.reached < 1:
            text += f"; {1 - self.reached:.0%} end before it"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep plan --json`` prints."""
        return {
            "rung": self.rung,
            "unit": self.unit,
            "first_at": None if self.steps is None else list(self.steps[0]),
            "last_at": None if self.steps is None else list(self.steps[1]),
            "reached_share": self.reached,
            "passed_by_first_step_share": self.at_once,
            "early_share": self.early,
        }


def with_extremes(checked: Preflight, tasks: Sequence[TrialTask]) -> list[TrialTask]:
    """Return planned configurations with some more, whose ranges are at their bounds.

    What is drawn at random hardly meets the corners of a space; trials will.
    """
    if all(not parameter.is_range for parameter in checked.space.parameters):
        return list(tasks)
    corners = SearchSpace([bounds_of(parameter) for parameter in checked.space.parameters])
    rng = np.random.default_rng(checked.spec.seed)
    points = [corners.sample(rng) for _ in range(NUM_EXTREME)]
    more = [task for task in checked.try_points(points) if not isinstance(task, BadInputError)]
    return [*tasks, *more]


def rung_figures(checked: Preflight, tasks: Sequence[TrialTask]) -> list[RungFigures]:
    """Return where trials reach each rung; none without rungs, or without a private trial."""
    spec = checked.spec
    tasks = [task for task in tasks if task.is_private and len(task.plan)]
    if not spec.rungs or not tasks:
        return []
    reached: list[list[tuple[int, int, bool]]] = [[] for _ in spec.rungs]
    for task in tasks:
        clock = EpsilonClock(
            task.plan,
            delta=spec.privacy.delta,
            accountant=spec.privacy.accountant,
            spent=task.inherited,
        )
        rungs = rung_epsilons(spec.rungs, spec.scheduler.rung_unit, clock)
        positions = rung_positions(clock, rungs)
        skipped = num_skipped(task.plan, positions)
        for number, position in enumerate(positions):
            if position < len(task.plan):
                reached[number].append((position, len(task.plan), number < skipped))
    return [
        _figures(rung, spec.scheduler.rung_unit, places, len(tasks))
        for rung, places in zip(spec.rungs, reached)
    ]


def _figures(
    rung: float, unit: str, found: Sequence[tuple[int, int, bool]], count: int
) -> RungFigures:
    steps = None
    if found:
        ordered = sorted(found, key=lambda at: at[0] / at[1])
        steps = ordered[0][:2], ordered[-1][:2]
    at_once = sum(is_skipped for _, _, is_skipped in found)
    early = sum(not is_skipped and at / of <= EARLY for at, of, is_skipped in found)
    return RungFigures(rung, unit, steps, len(found) / count, at_once / count, early / count)


def signal_span(checked: Preflight, tasks: Sequence[TrialTask]) -> tuple[float, float] | None:
    """Return the smallest and largest ``signal_to_noise`` of some trials, or None."""
    signals = [
        checked.admission.signal(task.plan, task.hparams) for task in tasks if task.is_private
    ]
    finite = [signal for signal in signals if signal is not None and math.isfinite(signal)]
    return (min(finite), max(finite)) if finite else None


def planned_notes(
    checked: Preflight, rungs: Sequence[RungFigures], signal: tuple[float, float] | None
) -> list[str]:
    """Return what is valid, but hardly meant so, in view of the plans of a space."""
    notes = []
    fix = "larger rungs, smaller batches"
    if checked.spec.scheduler.rung_unit == "epsilon":
        fix += ", or scheduler.rung_unit: share"
    for figures in rungs:
        name = f"rung {figures.rung:g}"
        if figures.at_once:
            notes.append(
                f"{name} is passed by the first step of {figures.at_once:.0%} of configurations; "
                f"they are not judged there ({fix})"
            )
        if figures.early:
            notes.append(
                f"{name} is reached within {EARLY:.0%} of their steps by {figures.early:.0%} of "
                f"configurations, which are judged when they have hardly begun ({fix})"
            )
        if not figures.reached:
            notes.append(f"{name} is reached by no configuration, so nothing is judged there")
    if signal is not None and signal[0] < FAINT:
        notes.append(
            "the noise is nearly as large as the data: at best all declared records together carry "
            f"{signal[0]:.2g} standard deviations of it (a larger trial_epsilon or "
            "noise.target_epsilon, or more records; useful plans have many tens)"
        )
    return notes

"""Phases of what a study declares: the start, its trials, and what comes after their barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.accountants import by_part
from dpsweep.privacy.composition.declared import DeclaredClass, declared_classes, event_words
from dpsweep.privacy.events import Plan
from dpsweep.search.points import first_points
from dpsweep.study.trial import TrialTask


@dataclass(frozen=True)
class Phases:
    """What is declared, in the order of the phases: plans, and how often each may be run.

    Attributes:
        starts: The start's runs.
        trials: Trials, or what they run before their barrier: one plan, or all points of a grid.
        promoted: What those run that pass the barrier.
        kept: Events that no trial of the search may use: scores of a final run on other records.
    """

    starts: Sequence[tuple[Plan, int]]
    trials: Sequence[tuple[Plan, int]]
    promoted: Sequence[tuple[Plan, int]] = ()
    kept: Plan = field(default_factory=Plan)

    @property
    def wanted(self) -> int:
        """How often the one plan is wanted; a grid is wanted once."""
        return self.trials[0][1] if len(self.trials) == 1 else 1

    def with_trials(self, number: int) -> list[Sequence[tuple[Plan, int]]]:
        """Return the phases with so many trials of the one plan; of a grid, all of its points."""
        trials = self.trials
        if len(trials) == 1:
            trials = [(trials[0][0], number)]
        return [phase for phase in (self.starts, trials, self.promoted) if phase]


def declared_phases(checked: Preflight) -> Phases:
    """Return what is to be declared, by phase.

    Raises:
        BadInputError: Configurations have different plans.
    """
    if checked.spec.search.sampler == "grid" and checked.spec.scheduler.type != "noisy_prefix":
        starts = [(task.full_plan, 1) for task in checked.start_tasks]
        plans = [(task.full_plan, 1) for task in _grid(checked)]
        return Phases(starts, plans, kept=kept_scores(checked))
    return phases_of(checked, only_task(checked))


def phases_of(checked: Preflight, task: TrialTask) -> Phases:
    """Return what is to be declared where all trials have the plan of one."""
    starts = [(start.full_plan, 1) for start in checked.start_tasks]
    first, *rest = task.stages
    promoted = [(plan, checked.spec.scheduler.keep) for plan in rest]
    return Phases(starts, [(first, checked.num_trials)], promoted, kept_scores(checked))


def _grid(checked: Preflight) -> list[TrialTask]:
    """Return as many points as there are trials, in the order of a study.

    It passes over those without a plan, too, and points that the spec names come first.
    """
    tried = checked.try_points(first_points(checked.spec, checked.space))
    planned = (task for task in tried if isinstance(task, TrialTask))
    return list(islice(planned, checked.num_trials))


def only_task(checked: Preflight) -> TrialTask:
    """Return a task whose plan is that of all: of those sampled, or of all points of a grid."""
    tasks = (_grid(checked) if checked.spec.search.sampler == "grid" else []) or checked.sample
    plans: dict[object, TrialTask] = {}
    for task in tasks:
        plans.setdefault(tuple(by_part(task.full_plan).items()), task)
    if len(plans) == 1:
        return next(iter(plans.values()))
    first, other = [task.full_plan for task in plans.values()][:2]
    raise BadInputError(
        f"{len(tasks)} sampled configurations have {len(plans)} different plans, for "
        f"instance {_told(first)}, and {_told(other)}",
        fix="give what a plan depends on one value (batch.*, train.*, noise.*, the method), use "
        "sampler: grid, or composition: filter",
    )


def _told(plan: Plan) -> str:
    """Return the events of a plan in a few words."""
    parts = [f"{run.count} times {event_words(run.event)}" for run in plan.runs[:2]]
    more = f" and {len(plan.runs) - 2} others" if len(plan.runs) > 2 else ""
    return ", ".join(parts) + more


def classes_of(phases: Phases, number: int, *, part: float = 0.0) -> tuple[DeclaredClass, ...]:
    """Return the classes of so many trials and a part of one more; of a grid, of all its points."""
    share = (number + part) / (number + 1) if part else 1.0
    classes = declared_classes(phases.with_trials(number + (part > 0)), share=share)
    return _with_kept(classes, phases.kept)


def _with_kept(classes: tuple[DeclaredClass, ...], kept: Plan) -> tuple[DeclaredClass, ...]:
    """Return the classes with what is kept, of which a share of the search takes nothing."""
    more = {(c.part, c.event): c for c in declared_classes([[(kept, 1)]])}
    added = []
    for each in classes:
        own = more.pop((each.part, each.event), None)
        added.append(each if own is None else replace(each, count=each.count + own.count))
    return (*added, *more.values())


def kept_scores(checked: Preflight) -> Plan:
    """Return the noisy scores that are kept for the final run: as many as the longest may make.

    Its steps are those of the trial that it repeats but for rounding, so there is one to spare.
    """
    if checked.rest is None or checked.admission.validation_noise is None:
        return Plan()
    admission = checked.rest.admission
    releases = [admission.releases(len(task.plan), extra=1) for task in checked.sample]
    return max(releases, key=len)

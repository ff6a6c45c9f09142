"""The composition of a composed study, chosen from its space before a record is opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.foundation.words import counted
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.accountants import by_part
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.declared import (
    DeclaredClass,
    DeclaredComposition,
    declared_classes,
    declared_epsilon,
    declared_interval,
    event_words,
)
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.composition.split import SplitComposition
from dpsweep.privacy.events import Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.study.trial import TrialTask

_BISECTIONS = 7  # of the last trial's share, where trials may stop early


def choose_composition(checked: Preflight) -> Composition | None:
    """Return the composition that a composed study is to have; None in other modes.

    ``filter`` is the Gaussian one where all sampled plans are noise over all records, which it
    composes exactly, and the Renyi one otherwise.

    Raises:
        SpecError: The study's budget admits no trial, or its events cannot be declared.
    """
    privacy = checked.spec.privacy
    if not privacy.mode.is_filtered or privacy.study_epsilon is None:
        return None
    if privacy.composition == "declared":
        return _with_final_run(checked, declare(checked))
    sampled = [task.full_plan for task in checked.sample]
    starts = [task.full_plan for task in checked.start_tasks]
    search = filter_of([*sampled, *starts], privacy.study_epsilon, privacy.delta)
    chosen = _with_final_run(checked, search)
    before = sum(chosen.share(chosen.cost(plan)) for plan in starts)
    cheapest = min(chosen.share(chosen.cost(plan)) for plan in sampled)
    if not before + cheapest <= 1:
        after = f"after the start's {counted(len(starts), 'run')}, " if starts else ""
        how = f" at Renyi order {search.order:g}" if isinstance(search, RenyiFilter) else ""
        problem = (
            f"{privacy.study_epsilon:g} admits no trial: {after}the cheapest of {len(sampled)} "
            f"sampled costs {before + cheapest:.2f} times the study's budget{how}"
        )
        raise _refused(checked, problem, "raise it, or lower privacy.trial_epsilon")
    return chosen


def _with_final_run(checked: Preflight, search: Composition) -> Composition:
    """Return the composition of a whole study whose search is on a part of the records.

    Raises:
        SpecError: The scores of its final run alone are more than there is.
    """
    share, privacy = checked.spec.searched_share, checked.spec.privacy
    if share is None:
        return search
    try:
        return SplitComposition(search, share, privacy.accountant, _kept(checked))
    except BadInputError as error:
        mistake = Mistake("privacy.study_epsilon", error.message, error.fix or "raise it")
        raise SpecError([mistake.at(checked.spec.where)]) from error


def _kept(checked: Preflight) -> Plan:
    """Return the noisy scores that are kept for the final run: as many as the longest may make.

    Its steps are those of the trial that it repeats but for rounding, so there is one to spare.
    """
    if checked.rest is None or checked.admission.validation_noise is None:
        return Plan()
    admission = checked.rest.admission
    releases = [admission.releases(len(task.plan), extra=1) for task in checked.sample]
    return max(releases, key=len)


def filter_of(
    plans: Sequence[Plan], target_epsilon: float, delta: float
) -> RenyiFilter | GaussianFilter:
    """Return the filter that suits these plans.

    Raises:
        InfeasibleBudgetError: As for ``RenyiFilter.choose``.
    """
    charging = what_costs(plans)
    if plans and all(GaussianFilter.covers(plan) for plan in charging):
        return GaussianFilter.at(target_epsilon=target_epsilon, delta=delta)
    return RenyiFilter.choose(charging, target_epsilon=target_epsilon, delta=delta)


def what_costs(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that charge protected records; all of them if none does.

    A study's filter is fitted to these: a plan that is free at every order says nothing of which
    one is good.
    """
    return [plan for plan in plans if any(run.part != "public" for run in plan.runs)] or list(plans)


@dataclass(frozen=True)
class FilterFigures:
    """How many trials a composed study admits.

    Attributes:
        order: Renyi order of the filter; None of a Gaussian one.
        budget: Its budget at that order.
        target_epsilon: The study's epsilon that the budget stands for.
        fits: Trials that fit if each runs to its end and costs as much as the cheapest, the median
            and the dearest one of the sample; infinitely many if that costs nothing.
    """

    order: float | None
    budget: float
    target_epsilon: float
    fits: tuple[float, float, float]


@dataclass(frozen=True)
class DeclaredFigures:
    """What a study could declare.

    Attributes:
        num_trials: Trials that fit if each runs to its end, at most as many as are wanted.
        epsilon: Of what is declared then.
        interval: Discretisation of privacy losses at which that was seen not to move.
        problem: Why nothing can be declared; empty where something can.
    """

    num_trials: int
    epsilon: float
    interval: float
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the record of ``dpsweep plan --json``."""
        return {
            "full_length_trials_that_fit": self.num_trials,
            "epsilon": self.epsilon,
            "discretization": self.interval,
            "problem": self.problem or None,
        }


def filter_figures(checked: Preflight, private: Sequence[TrialTask]) -> FilterFigures | None:
    """Return the figures of the filter that the sweep itself would choose."""
    privacy = checked.spec.privacy
    if privacy.study_epsilon is None:
        return None
    plans = [task.full_plan for task in (*private, *checked.start_tasks)]
    search = filter_of(plans, privacy.study_epsilon, privacy.delta)
    chosen = _with_final_run(checked, search)
    costs = [chosen.share(chosen.cost(task.full_plan)) for task in private]
    before = sum(chosen.share(chosen.cost(task.full_plan)) for task in checked.start_tasks)
    left = max(1 - before, 0.0)
    low, middle, high = (
        int(left / cost) if cost > 0 else math.inf
        for cost in (min(costs), median(costs), max(costs))
    )
    order = search.order if isinstance(search, RenyiFilter) else None
    return FilterFigures(order, search.budget, search.target_epsilon, (low, middle, high))


def declared_figures(checked: Preflight) -> DeclaredFigures:
    """Return how many trials a study may declare, or why it may none."""
    privacy = checked.spec.privacy
    try:
        phases = _phases(checked)
        number = _whole_trials(checked, phases)
    except BadInputError as error:
        return DeclaredFigures(0, 0.0, 0.0, error.message)
    classes = _declarable(checked, phases, number)
    if checked.spec.search.sampler == "grid":
        number = sum(copies for _, copies in phases.last)
    return DeclaredFigures(
        number,
        declared_epsilon(classes, privacy.delta),
        declared_interval(classes, privacy.delta),
    )


def declare(checked: Preflight) -> DeclaredComposition:
    """Return the events that a study declares: those of as many trials as its budget admits.

    The runs of a start are a phase of their own, before the trials. Where trials may be stopped
    early, what is left beyond whole trials is declared too.

    Raises:
        SpecError: Configurations have different plans, an event has no privacy loss distribution,
            or not one trial fits.
    """
    spec, privacy = checked.spec, checked.spec.privacy
    assert privacy.study_epsilon is not None
    try:
        phases = _phases(checked)
        classes = _declarable(checked, phases, _whole_trials(checked, phases))
        return DeclaredComposition.at(
            classes, target_epsilon=privacy.study_epsilon, delta=privacy.delta
        )
    except SpecError:
        raise
    except BadInputError as error:
        fix = error.fix or "use composition: filter"
        mistake = Mistake("privacy.composition", f"declared: {error.message}", fix)
        raise SpecError([mistake.at(spec.where)]) from error


def _declarable(checked: Preflight, phases: _Phases, number: int) -> tuple[DeclaredClass, ...]:
    """Return the classes of so many whole trials, and of what else may be used."""
    privacy = checked.spec.privacy
    if number < _wanted(checked, phases) and checked.spec.scheduler.type != "fifo":
        assert privacy.study_epsilon is not None
        return _with_a_part(phases, number, privacy.study_epsilon, privacy.delta)
    return _classes(phases, number)


@dataclass(frozen=True)
class _Phases:
    """What is to be declared.

    Attributes:
        before: Plans of phases that come first, and how often each is run: those of a start.
        last: Plans of trials.
        kept: Events of the last phase that no trial of the search may use.
    """

    before: Sequence[Sequence[tuple[Plan, int]]]
    last: Sequence[tuple[Plan, int]]
    kept: Plan


def _phases(checked: Preflight) -> _Phases:
    """Return what is to be declared: the start's runs, then plans of trials.

    Raises:
        BadInputError: Configurations have different plans.
    """
    starts = [(task.full_plan, 1) for task in checked.start_tasks]
    if checked.spec.search.sampler == "grid":
        tried = checked.try_points(checked.space.grid()[: checked.num_trials])
        plans = [(task.full_plan, 1) for task in tried if isinstance(task, TrialTask)]
    else:
        plans = [(_only_plan(checked), checked.num_trials)]
    return _Phases([starts] if starts else [], plans, _kept(checked))


def _only_plan(checked: Preflight) -> Plan:
    plans: dict[object, Plan] = {}
    for task in checked.sample:
        plans.setdefault(tuple(by_part(task.full_plan).items()), task.full_plan)
    if len(plans) == 1:
        return next(iter(plans.values()))
    first, other = list(plans.values())[:2]
    raise BadInputError(
        f"{len(checked.sample)} sampled configurations have {len(plans)} different plans, for "
        f"instance {_told(first)}, and {_told(other)}",
        fix="give what a plan depends on one value (batch.*, train.*, noise.*, the method), use "
        "sampler: grid, or composition: filter",
    )


def _told(plan: Plan) -> str:
    """Return the events of a plan in a few words."""
    parts = [f"{run.count} times {event_words(run.event)}" for run in plan.runs[:2]]
    more = f" and {len(plan.runs) - 2} others" if len(plan.runs) > 2 else ""
    return ", ".join(parts) + more


def _wanted(checked: Preflight, phases: _Phases) -> int:
    return 1 if checked.spec.search.sampler == "grid" else phases.last[0][1]


def _classes(phases: _Phases, number: int, *, part: float = 0.0) -> tuple[DeclaredClass, ...]:
    """Return the classes of so many trials and a part of one more; of a grid, of all its points."""
    plans = phases.last
    if len(plans) == 1:
        plans = [(plans[0][0], number + (part > 0))]
    share = (number + part) / (number + 1) if part else 1.0
    return _with_kept(declared_classes([*phases.before, plans], share=share), phases)


def _with_kept(classes: tuple[DeclaredClass, ...], phases: _Phases) -> tuple[DeclaredClass, ...]:
    """Return the classes with what is kept, of which a share of the search takes nothing."""
    kept = declared_classes([[], [(phases.kept, 1)]] if phases.before else [[(phases.kept, 1)]])
    more = {(each.part, each.event): each.count for each in kept}
    added = [replace(c, count=c.count + more.pop((c.part, c.event), 0)) for c in classes]
    return (*added, *(each for each in kept if (each.part, each.event) in more))


def _whole_trials(checked: Preflight, phases: _Phases) -> int:
    """Return the largest number of whole trials within the study's budget, at most all.

    Raises:
        SpecError: Not one fits; of a grid, not all of its points do.
        BadInputError: An event has no privacy loss distribution.
    """
    privacy, most = checked.spec.privacy, _wanted(checked, phases)
    assert privacy.study_epsilon is not None

    def epsilon(number: int) -> float:
        return declared_epsilon(_classes(phases, number), privacy.delta)

    low, high = 0, most + 1
    if epsilon(most) <= privacy.study_epsilon:
        return most
    high = most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(middle) <= privacy.study_epsilon else (low, middle)
    if low:
        return low
    which = "all points of the grid cost" if len(phases.last) > 1 else "one trial costs"
    after = "after the start's runs, " if phases.before else ""
    problem = (
        f"{privacy.study_epsilon:g} is too small: {after}{which} epsilon="
        f"{shown_epsilon(epsilon(1))} at delta={privacy.delta:g} (pld, declared)"
    )
    raise _refused(checked, problem, "raise it, or lower privacy.trial_epsilon")


def _with_a_part(
    phases: _Phases, number: int, target: float, delta: float
) -> tuple[DeclaredClass, ...]:
    """Return the classes of so many trials and of as much of one more as fits."""
    low, high = 0.0, 1.0
    best = _classes(phases, number)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        classes = _classes(phases, number, part=middle)
        if declared_epsilon(classes, delta) <= target:
            low, best = middle, classes
        else:
            high = middle
    return best


def _refused(checked: Preflight, problem: str, fix: str) -> SpecError:
    mistake = Mistake("privacy.study_epsilon", problem, fix)
    return SpecError([mistake.at(checked.spec.where)])

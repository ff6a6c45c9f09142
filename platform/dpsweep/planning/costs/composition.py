"""The composition of a composed study, chosen from its space before a record is opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.foundation.words import counted
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.declaring.barrier import (
    BarrierFigures,
    barrier_figures,
    fitting_trial_epsilon,
)
from dpsweep.planning.declaring.phases import Phases, classes_of, declared_phases, kept_scores
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.declared import (
    DeclaredClass,
    DeclaredComposition,
    declared_classes,
    declared_epsilon,
    declared_interval,
)
from dpsweep.privacy.composition.gaussian_filter import GaussianFilter
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
from dpsweep.privacy.composition.split import SplitComposition
from dpsweep.privacy.events import Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.study.trial import TrialTask

_LESS = "raise it, or lower privacy.trial_epsilon"
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
        raise checked.refusal("privacy.study_epsilon", problem, _LESS)
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
        return SplitComposition(search, share, privacy.accountant, kept_scores(checked))
    except BadInputError as error:
        mistake = Mistake("privacy.study_epsilon", error.message, error.fix or "raise it")
        raise SpecError([mistake.at(checked.spec.where)]) from error


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
        num_trials: Trials that fit if each runs to its end, at most as many as are wanted; with a
            barrier, trials that fit if each comes to it and some are promoted.
        epsilon: Of what is declared then.
        interval: Discretisation of privacy losses at which that was seen not to move.
        problem: Why nothing can be declared; empty where something can.
        barrier: What trials wait for, or None.
    """

    num_trials: int
    epsilon: float
    interval: float
    problem: str = ""
    barrier: BarrierFigures | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record of ``dpsweep plan --json``."""
        return {
            "full_length_trials_that_fit": self.num_trials,
            "epsilon": self.epsilon,
            "discretization": self.interval,
            "problem": self.problem or None,
            "barrier": None if self.barrier is None else asdict(self.barrier),
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
        number, classes, phases = _trials(checked)
    except BadInputError as error:
        return DeclaredFigures(0, 0.0, 0.0, _said(error))
    epsilon = declared_epsilon(classes, privacy.delta)
    interval = declared_interval(classes, privacy.delta)
    is_halved = phases is not None and bool(phases.promoted)
    barrier = barrier_figures(checked, classes) if is_halved else None
    return DeclaredFigures(number, epsilon, interval, barrier=barrier)


def declare(checked: Preflight) -> DeclaredComposition:
    """Return the events that a study declares: those of as many trials as its budget admits.

    The runs of a start are a phase of their own, before the trials; so are probes, before the final
    run, which gets what they leave. Where trials may be stopped early, what is left beyond whole
    trials is declared too. Where they wait at a barrier, there is a phase before it for all trials
    and one after it for those that are promoted.

    Raises:
        SpecError: Configurations have different plans, an event has no privacy loss distribution,
            or not one trial fits.
    """
    spec, privacy = checked.spec, checked.spec.privacy
    assert privacy.study_epsilon is not None
    try:
        _, classes, _ = _trials(checked)
        return DeclaredComposition.at(
            classes, target_epsilon=privacy.study_epsilon, delta=privacy.delta
        )
    except SpecError:
        raise
    except BadInputError as error:
        fix = error.fix or "use composition: filter"
        mistake = Mistake("privacy.composition", f"declared: {error.message}", fix)
        raise SpecError([mistake.at(spec.where)]) from error


def _trials(checked: Preflight) -> tuple[int, tuple[DeclaredClass, ...], Phases | None]:
    """Return how many trials are declared, their classes, and their phases where they are a search.

    Raises:
        BadInputError: As for ``declare``.
    """
    if checked.spec.final_trial is not None:
        return checked.num_trials, declared_classes(Probing(checked).phases), None
    phases = declared_phases(checked)
    number = _whole_trials(checked, phases)
    classes = _declarable(checked, phases, number)
    if len(phases.trials) > 1:
        number = sum(copies for _, copies in phases.trials)
    return number, classes, phases


def _declarable(checked: Preflight, phases: Phases, number: int) -> tuple[DeclaredClass, ...]:
    """Return the classes of so many whole trials, and of what else may be used."""
    privacy, is_fifo = checked.spec.privacy, checked.spec.scheduler.type == "fifo"
    if number < phases.wanted and not is_fifo and not phases.promoted:
        assert privacy.study_epsilon is not None
        return _with_a_part(phases, number, privacy.study_epsilon, privacy.delta)
    return classes_of(phases, number)


def _whole_trials(checked: Preflight, phases: Phases) -> int:
    """Return the largest number of whole trials within the study's budget, at most all.

    Raises:
        SpecError: Not one fits; of a grid, not all of its points do.
        BadInputError: An event has no privacy loss distribution.
    """
    privacy, most = checked.spec.privacy, phases.wanted
    assert privacy.study_epsilon is not None

    def epsilon(number: int) -> float:
        return declared_epsilon(classes_of(phases, number), privacy.delta)

    low, high = 0, most + 1
    if epsilon(most) <= privacy.study_epsilon:
        return most
    high = most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(middle) <= privacy.study_epsilon else (low, middle)
    fix = _LESS
    if phases.promoted:
        if low > (keep := phases.promoted[0][1]):
            return low
        fits = fitting_trial_epsilon(checked)
        fix += f": {fits:g} fits" if fits is not None else ""
        which = f"{counted(keep + 1, 'trial')}, {keep} of which {'goes' if keep == 1 else 'go'} on"
        which, number = f"{which} to the end, cost", keep + 1
    elif low:
        return low
    else:
        which, number = "one trial costs", 1
        if len(phases.trials) > 1:
            which = "all points of the grid cost"
    after = "after the start's runs, " if phases.starts else ""
    problem = (
        f"{privacy.study_epsilon:g} is too small: {after}{which} epsilon="
        f"{shown_epsilon(epsilon(number))} at delta={shown_delta(privacy.delta)} (pld, declared)"
    )
    raise checked.refusal("privacy.study_epsilon", problem, fix)


def _with_a_part(
    phases: Phases, number: int, target: float, delta: float
) -> tuple[DeclaredClass, ...]:
    """Return the classes of so many trials and of as much of one more as fits."""
    low, high = 0.0, 1.0
    best = classes_of(phases, number)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        classes = classes_of(phases, number, part=middle)
        if declared_epsilon(classes, delta) <= target:
            low, best = middle, classes
        else:
            high = middle
    return best


def _said(error: BadInputError) -> str:
    """Return a mistake in one line, with what to do about it where that is a figure."""
    mistakes = error.mistakes if isinstance(error, SpecError) else ()
    return "; ".join(f"{m.what} ({m.fix})" for m in mistakes) or error.message


def composed_epsilon(checked: Preflight, private: Sequence[TrialTask], num_trials: int) -> float:
    """Return the epsilon of ``num_trials`` whole trials that cost what the sample's do, in turn.

    The dearest come first. Of probes it is what is declared: probes and spares, which have one
    plan, and the final run once. The runs of a start are in it, once.
    """
    delta = checked.spec.privacy.delta
    if checked.spec.final_trial is not None:  # the last of the sample
        counts = [(private[0].full_plan, num_trials - 1), (private[-1].full_plan, 1)]
    else:
        plans = sorted(
            (task.full_plan for task in private), key=lambda plan: -epsilon_of(plan, delta=delta)
        )
        whole, rest = divmod(num_trials, len(plans))
        counts = [(plan, whole + (index < rest)) for index, plan in enumerate(plans)]
    runs = [
        replace(run, count=run.count * copies)
        for plan, copies in counts
        if copies
        for run in plan.runs
    ]
    runs += [run for task in checked.start_tasks for run in task.full_plan.runs]
    return epsilon_of(Plan(tuple(runs)), delta=delta, accountant="rdp")

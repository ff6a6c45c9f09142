"""Summary of a sweep's work and cost, from a sample of its space; nothing is run, no record read.

``dpsweep plan`` prints it. All four accounting modes are computed side by side, so that the price
of a search can be compared before one is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import counted
from dpsweep.planning.costs.composition import (
    DeclaredFigures,
    FilterFigures,
    composed_epsilon,
    declared_figures,
    filter_figures,
)
from dpsweep.planning.costs.probing import Probing, ProbingFigures
from dpsweep.planning.costs.selection import (
    SelectionFigures,
    selection_figures,
    with_planned_final,
)
from dpsweep.planning.preflight import Preflight
from dpsweep.planning.rungs import (
    RungFigures,
    planned_notes,
    rung_figures,
    signal_span,
    with_extremes,
)
from dpsweep.planning.sample import (
    FinalFigures,
    Sample,
    draw_sample,
    expected_trials,
    final_figures,
)
from dpsweep.planning.start import StartSummary
from dpsweep.privacy.modes import COMPOSED, MODES, PUBLIC, SELECT, Mode
from dpsweep.privacy.terms import PrivacyTerms
from dpsweep.spec.facts import without_exact
from dpsweep.study.trial import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.hooks import facts_of, peak_rate_of


@dataclass(frozen=True)
class ModeCost:
    """The cost of the whole search under one accounting mode.

    Attributes:
        epsilon: Of what is released, at the study's delta.
        accountant: Which accountant bounds it.
        sampling: How records enter the events.
        released: What the epsilon is about.
        assumes: What the figure holds for.
    """

    epsilon: float
    accountant: str
    sampling: str
    released: str
    assumes: str


@dataclass(frozen=True)
class PlanSummary:
    """The summary of a sweep before it runs.

    Attributes:
        num_trials: Trials that will run (``expected_trials``).
        num_sampled: Configurations drawn for the figures below; of a grid all of them, up to
            ``MAX_GRID_PLANNED``.
        infeasible: Share of them that have no plan within the budget.
        is_exact: True where the sample is the whole grid.
        reasons: Why, most frequent first.
        steps: Smallest and largest number of steps.
        noise_multiplier: Smallest and largest noise multiplier of any step, or None.
        epsilon: Smallest and largest epsilon of a whole trial, or None.
        plan_facts: What methods say of their own plans (``hooks.PlanFacts``) at the study's delta
            and by its accountant: name to smallest and largest value.
        composed_epsilon: Epsilon if every trial (with episodes, every trial of one of them) ran to
            its end, at the sample's costs, or None; scores that are shown exactly have none.
        visibility: Of the scores on the validation records.
        episodes: Episodes that each configuration runs on, or None.
        has_start: Whether the spec has a section start.
        start: Its private runs, which come first and are not among the trials, or None.
        composed: The filter that a composed study would have; None without a ``study_epsilon``.
        declared: What it could declare instead; None likewise.
        composition: Which of the two the spec chooses: filter or declared.
        probing: What probes and their final run cost, or None.
        selection: What ``select`` costs, or None where no trial has a finite epsilon.
        rungs: Where trials reach the scheduler's rungs.
        signal: Smallest and largest ``signal_to_noise`` of a trial, or None.
        final: The run after a search on a part of the records, or None.
        notes: What is valid, but hardly meant so.
        modes: Cost of the search under each mode; None where it has none.
        study_epsilon: Of the chosen mode, or None.
    """

    num_trials: int
    num_sampled: int
    infeasible: float
    is_exact: bool
    reasons: list[str]
    steps: tuple[int, int] | None
    noise_multiplier: tuple[float, float] | None
    epsilon: tuple[float, float] | None
    plan_facts: Mapping[str, tuple[float, float]]
    composed_epsilon: float | None
    visibility: str
    episodes: int | None
    has_start: bool
    start: StartSummary | None
    composed: FilterFigures | None
    declared: DeclaredFigures | None
    composition: str
    probing: ProbingFigures | None
    selection: SelectionFigures | None
    rungs: Sequence[RungFigures]
    signal: tuple[float, float] | None
    final: FinalFigures | None
    notes: Sequence[str]
    modes: Mapping[str, ModeCost | None]
    study_epsilon: float | None
    terms: PrivacyTerms

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep plan --json`` prints (a stable interface)."""
        return {
            "trials": self.num_trials,
            "episodes": self.episodes,
            "configurations_sampled": self.num_sampled,
            "infeasible_share": self.infeasible,
            "infeasible_share_is_exact": self.is_exact,
            "infeasible_because": self.reasons,
            "steps_per_trial": list(self.steps) if self.steps else None,
            "noise_multiplier": list(self.noise_multiplier) if self.noise_multiplier else None,
            "epsilon_per_trial": list(self.epsilon) if self.epsilon else None,
            "signal_to_noise_at_best": list(self.signal) if self.signal else None,
            "rungs": [figures.to_dict() for figures in self.rungs],
            "notes": list(self.notes),
            "final_run": asdict(self.final) if self.final else None,
            "start": self.start.to_dict() if self.start else None,
            "plan_facts": {name: list(span) for name, span in self.plan_facts.items()},
            **self.terms.columns(),
            "study_epsilon": self.study_epsilon,
            "composed_epsilon_indication": self.composed_epsilon,
            "composed_epsilon_indication_is": self.indication_is,
            "composed_accountant": "rdp",
            "study_epsilon_by_mode": {mode: self._mode(mode) for mode in self.modes},
            "filter": self._filter(),
            "declared": self._declared(),
            "probing": self._probing(),
            "selection": self._selection(),
        }

    @property
    def indication_is(self) -> str | None:
        """What ``composed_epsilon`` holds for, in words that stand behind it; None without it."""
        if self.composed_epsilon is None:
            return None
        return f"(rdp){without_exact(self.visibility)}: an indication, no guarantee"

    def _as(self, mode: Mode) -> PrivacyTerms:
        return replace(self.terms, accounting=mode.name)

    def _terms(self, mode: Mode) -> dict[str, Any]:
        """Return what stands beside an epsilon that another accountant or mode bounds."""
        return replace(self._as(mode), accountant="rdp").columns()

    def _mode(self, mode: str) -> dict[str, Any] | None:
        cost = self.modes[mode]
        if cost is None:
            return None
        chosen = mode == self.terms.accounting
        terms = self._terms(MODES[mode])
        return {**terms, **asdict(cost), "chosen": chosen}

    def _filter(self) -> dict[str, Any] | None:
        figures = self.composed
        if figures is None:
            return None
        return {
            "order": figures.order,
            "budget": figures.budget,
            "target_epsilon": figures.target_epsilon,
            "full_length_trials_that_fit": dict(
                zip(("at_min_cost", "at_median_cost", "at_max_cost"), figures.fits)
            ),
            **self._terms(COMPOSED),
        }

    def _declared(self) -> dict[str, Any] | None:
        if self.declared is None:
            return None
        terms = replace(self.terms, accountant="pld", accounting=COMPOSED.name).columns()
        return {**self.declared.to_dict(), "chosen": self.composition == "declared", **terms}

    def _probing(self) -> dict[str, Any] | None:
        return None if self.probing is None else {**asdict(self.probing), **self.terms.columns()}

    def _selection(self) -> dict[str, Any] | None:
        figures = self.selection
        if figures is None:
            return None
        return {
            "mean_trials": figures.mean,
            "shape": figures.shape,
            "probability_of_one_trial": figures.probability_of_one,
            "base_epsilon": figures.base_epsilon,
            "epsilon": figures.epsilon,
            "study_epsilon": figures.cap,
            "fits": figures.fits,
            "trial_epsilon_that_fits": figures.trial_epsilon_that_fits,
            "secret_part": None if figures.secret_part is None else asdict(figures.secret_part),
            **replace(self._as(SELECT), accountant=figures.accountant).columns(),
        }


def summarize_plan(checked: Preflight, sample: Sample | None = None) -> PlanSummary:
    """Say what a sweep will do and cost, without data, Ray or tracking.

    Args:
        checked: A checked spec.
        sample: From ``draw_sample``, or None to draw one.
    """
    spec, privacy = checked.spec, checked.spec.privacy
    sample = sample or draw_sample(checked)
    tasks, num_trials = sample.tasks, expected_trials(checked, sample)
    private = [task for task in tasks if task.is_private]
    probing = None if spec.final_trial is None else Probing(checked).figures
    charged = _charged_sample(checked, sample) if len(private) == len(tasks) else []
    samplings = {task.sampling for task in tasks}
    sampling = ", ".join(sorted(samplings)) or "none"
    composed = figures = selection = declared = None
    episodes = None if spec.episodes is None else spec.episodes.number
    if charged:
        priced = private if sample.is_exact else charged
        composed = composed_epsilon(checked, priced, num_trials // (episodes or 1))
        if probing is None and spec.subset_rate is None:
            figures = filter_figures(checked, charged)
        if privacy.study_epsilon is not None and privacy.mode.is_filtered:
            declared = declared_figures(checked)
    has_rest = checked.rest is not None and spec.subset_rate is None
    is_exact = spec.data.validation.visibility == "exact"  # which has no finite epsilon
    if charged and not (is_exact or episodes or spec.start or has_rest or probing):
        selection = selection_figures(checked, charged)
    is_gaussian = figures is not None and figures.order is None
    modes = _modes(
        checked,
        charged,
        None if episodes or is_exact else composed,
        selection,
        sampling,
        num_trials=num_trials,
        is_gaussian=is_gaussian,
    )
    chosen = modes[privacy.accounting]
    spread = tasks if sample.is_exact else with_extremes(checked, tasks)
    rungs, signal = rung_figures(checked, spread), signal_span(checked, spread)
    return PlanSummary(
        num_trials=num_trials,
        num_sampled=sample.num_drawn,
        infeasible=1 - len(tasks) / sample.num_drawn,
        is_exact=sample.is_exact,
        reasons=sorted(sample.reasons, key=lambda reason: -sample.reasons[reason])[:3],
        steps=_range([len(task.plan) for task in tasks]),
        noise_multiplier=_range(
            [
                run.event.noise_multiplier
                for task in tasks
                for run in task.plan.runs
                if hasattr(run.event, "noise_multiplier")
            ]
        ),
        epsilon=_range([task.planned_epsilon for task in private]),
        plan_facts=_plan_facts(checked, private),
        composed_epsilon=None if spec.subset_rate is not None else composed,
        visibility=spec.data.validation.visibility,
        episodes=episodes,
        has_start=spec.start is not None,
        start=checked.start,
        composed=figures,
        declared=declared,
        composition=privacy.chosen_composition,
        probing=probing,
        selection=selection,
        rungs=rungs,
        signal=signal,
        final=final_figures(with_planned_final(checked, selection), tasks),
        notes=planned_notes(checked, rungs, signal),
        modes=modes,
        study_epsilon=None if chosen is None else chosen.epsilon,
        terms=spec.privacy_terms(sampling),
    )


def _plan_facts(checked: Preflight, tasks: Sequence[TrialTask]) -> dict[str, tuple[float, float]]:
    """Return the smallest and largest value of what methods say of the plans of ``tasks``.

    Learning rates that follow from the noise are among it.
    """
    privacy, num_private = checked.spec.privacy, checked.info.num_private
    by_name: dict[str, list[float]] = {}
    for task in tasks:
        facts = facts_of(
            TRAINABLES[task.method],
            task.plan,
            task.inherited,
            delta=privacy.delta,
            accountant=privacy.accountant,
        )
        rate = peak_rate_of(TRAINABLES[task.method], task.hparams, task.plan, num_private)
        if rate is not None:
            facts = {**facts, "learning_rate": rate}
        for name, value in facts.items():
            by_name.setdefault(name, []).append(value)
    return {name: (min(values), max(values)) for name, values in by_name.items()}


def _charged_sample(checked: Preflight, sample: Sample) -> Sequence[TrialTask]:
    """Return the tasks by which a sweep chooses its filter and what its selection is charged."""
    if checked.spec.final_trial is not None:
        return sample.tasks
    try:
        tasks = checked.sample
    except BadInputError:
        return []
    return tasks if all(task.is_private for task in tasks) else []


def _modes(
    checked: Preflight,
    private: Sequence[TrialTask],
    composed: float | None,
    selection: SelectionFigures | None,
    sampling: str,
    *,
    num_trials: int,
    is_gaussian: bool,
) -> dict[str, ModeCost | None]:
    modes: dict[str, ModeCost | None] = dict.fromkeys(MODES)
    if not private or composed is None:
        return modes
    privacy = checked.spec.privacy
    assumes = f"{counted(num_trials, 'trial')}, all run to the end"
    accountant = "rdp"
    if privacy.mode.is_filtered and privacy.study_epsilon is not None:
        composed, assumes = privacy.study_epsilon, "enforced by a Renyi filter, pruning or not"
        if privacy.chosen_composition == "declared":
            accountant, assumes = "pld", "all events are declared beforehand, pruning or not"
        elif is_gaussian:
            accountant, assumes = "gdp", "enforced by a Gaussian filter, pruning or not"
    if checked.rest is not None:
        assumes += "; so is the final run on the other records, and a record is in one of the two"
    released = "every model and score of the search"
    best, number = "the best model, its configuration and score", "the number of trials is drawn"
    if checked.spec.subset_rate is None:
        modes[COMPOSED.name] = ModeCost(composed, accountant, sampling, released, assumes)
    else:
        best = "the final run on all private records, and its configuration"
        number = "the part that is searched on and the number of trials are drawn"
    if selection is None:
        return modes
    number += f" at random and kept secret, {selection.mean:g} expected (shape {selection.shape})"
    by = selection.accountant
    modes[SELECT.name] = ModeCost(selection.epsilon, by, sampling, best, number)
    is_noisy = checked.spec.data.validation.visibility == "noisy"  # scores of private records
    if checked.spec.subset_rate is not None or is_noisy:
        return modes
    num_public = checked.info.num_public
    modes[PUBLIC.name] = ModeCost(
        max(task.planned_epsilon for task in private),
        privacy.accountant,
        sampling,
        "the final model; the search reads public records only",
        f"a search on {counted(num_public, 'public record')} and one private run"
        if num_public
        else "a spec with public records: none are declared here (data.public)",
    )
    return modes


def _range(values: list[Any]) -> tuple[Any, Any] | None:
    return (min(values), max(values)) if values else None

"""Everything that can be known to be wrong before a sweep starts, all of it at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import numpy as np

from dpsweep.foundation.errors import (
    BadInputError,
    InfeasibleBudgetError,
    Mistake,
    SpecError,
)
from dpsweep.foundation.validate import of_kind
from dpsweep.ledgers.dataset import check_dataset_budget
from dpsweep.planning.admission import Admission
from dpsweep.planning.checks import CHECKS, CHECKS_OF_METHODS, read_draft
from dpsweep.planning.deltas import delta_note, with_launched_delta
from dpsweep.planning.problems import (
    barrier_note,
    budget_note,
    space_notes,
    validation_note,
)
from dpsweep.planning.public_records import SHOTS, blind_note, private_parts
from dpsweep.planning.start import (
    StartSummary,
    planned_starts,
    release_problems,
    start_notes,
    start_tasks,
    summarize_start,
)
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.events import Plan
from dpsweep.search_spaces.base import MAX_INFEASIBLE_IN_A_ROW, SearchSpace
from dpsweep.spec.base import check_made
from dpsweep.spec.facts import with_terms
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import is_new
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import DatasetInfo, info_of_records
from dpsweep.trainables.data.releases import ReleaseKey
from dpsweep.trainables.hooks import CarriesOver
from dpsweep.trainables.method import Method
from dpsweep.trainables.outside import asked

#: Configurations that a study's filter or selection is chosen from.
NUM_SAMPLED = 32
_FIX = "SweepSpec.from_yaml(path), or SweepSpec(**sections)"


class Charge(Protocol):
    """The cost of a study that is fixed before it begins (``planning.costs.charge``)."""

    @property
    def epsilon(self) -> float:
        """Of all that the study releases, at its delta."""


@dataclass(frozen=True)
class Preflight:
    """A spec whose parts fit together.

    Attributes:
        spec: The spec.
        space: Its search space, checked against the methods' hyperparameters.
        info: Shapes and declared sizes of the data of a trial; no record was read.
        methods: The methods the space can choose.
        budget: Cap of one trial.
        training: What its training may cost of it; None: all of it.
        records: Which records its trials train on (``for_public_search``, ``rest``).
        given_starts: Events of the start's releases as they were charged; None: as planned.
        rest: Of a search on a part of the private records, the same for its final run: the declared
            number of the records that it reads, and its budget.
        composition: See ``Admission``: of a study that has begun; no plan of ``rest`` is declared.
        codes: See ``Admission``; the same of all that are made of this one.
    """

    spec: SweepSpec
    space: SearchSpace
    info: DatasetInfo
    methods: Mapping[str, type[Method]]
    budget: PrivacyBudget
    records: Literal["private", "public", "rest"] = "private"
    given_starts: Mapping[ReleaseKey, Plan] | None = None
    training: PrivacyBudget | None = None
    rest: Preflight | None = None
    composition: Composition | None = None
    codes: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def admission(self) -> Admission:
        """Whoever makes a configuration a task."""
        return replace(self._without_starts, starts=self.starts)

    @property
    def _without_starts(self) -> Admission:
        return Admission(
            self.spec,
            self.info,
            self.methods,
            self.budget,
            self.records,
            composition=self.composition,
            training=self.training,
            codes=self.codes,
        )

    @cached_property
    def starts(self) -> Mapping[ReleaseKey, Plan]:
        """The private events of every release that trials may start from."""
        if self.given_starts is not None:
            return self.given_starts
        return planned_starts(self.start, self.start_tasks)

    @cached_property
    def start_tasks(self) -> list[TrialTask]:
        """The runs of the start, which come before the trials of the search."""
        return start_tasks(self._without_starts)

    @cached_property
    def start(self) -> StartSummary | None:
        """The plan of the start; None if nothing is trained before the search."""
        return summarize_start(self.spec, self.start_tasks)

    @property
    def notes(self) -> list[str]:
        """Notes on what is valid, but hardly meant so."""
        notes = space_notes(self.space, self.methods, self.info)
        notes += start_notes(self.spec, self.methods, self.space.values())
        notes += [barrier_note(self.spec, self.space.values())]
        notes += [blind_note(self.spec, self._shots, self.info)]
        notes += [delta_note(self.spec), budget_note(self.spec), validation_note(self.info)]
        notes += self.info.notes
        return [note for note in dict.fromkeys(notes) if note]

    @property
    def _shots(self) -> dict[str, list[Any]]:
        """Values of ``public.shots``, where a method has it."""
        shots: list[Any] = []
        for name, method in self.methods.items():
            defaults = {parameter.name: parameter.default for parameter in method.hyperparameters}
            if SHOTS in defaults:
                shots += self.space.values(name).get(SHOTS, [defaults[SHOTS]])
        return {SHOTS: shots}

    @property
    def num_trials(self) -> int:
        """Trials of the search: a grid may have fewer points than ``search.num_trials``.

        Of probes it is the most there may be, spares and the final run included.
        """
        if self.spec.final_trial is not None:
            return self.spec.final_trial + 1
        if self.spec.episodes is not None:
            return len(self.space.grid())
        if self.spec.search.sampler != "grid":
            return self.spec.search.num_trials
        return min(self.spec.search.num_trials, len(self.space.grid()))

    @property
    def total_trials(self) -> int:
        """Trials that will run in all: the start's runs, then those of the search."""
        return self.num_trials + self.spec.num_starts

    def admit(self, trial: int, values: Mapping[str, Any]) -> TrialTask:
        """Return the task of one configuration (``Admission.admit``).

        Raises:
            InfeasibleBudgetError: The method has no plan within the budget for these values.
        """
        return self.admission.admit(trial, values)

    def for_public_search(self) -> Preflight:
        """Return the same spec for trials that train on the declared public records only."""
        info = replace(self.info, num_private=self.info.num_public, num_public=0)
        return replace(self, info=info, records="public")

    def parted(self) -> Preflight:
        """Return the same spec for its search, with ``rest`` if that is on a part of the records.

        The final run is planned for (``study_epsilon``, delta) on those that it alone reads. After
        a search on a secret part it reads all of them, and keeps what the search leaves:
        ``with_final``.
        """
        share, study_epsilon = self.spec.part_share, self.spec.privacy.study_epsilon
        if share is None or study_epsilon is None:
            return self
        budget = replace(self.budget, target_epsilon=study_epsilon)
        rest = replace(self, budget=budget)
        if self.spec.searched_share is not None:
            rest = replace(rest, info=info_of_records(self.info, share, "rest"), records="rest")
        return replace(self, info=info_of_records(self.info, share, "private"), rest=rest)

    def with_final(self, epsilon: float) -> Preflight:
        """Return the same spec with a final run that is planned for another epsilon."""
        assert self.rest is not None
        budget = replace(self.rest.budget, target_epsilon=epsilon)
        return replace(self, rest=replace(self.rest, budget=budget))

    def final_of(self, trial: int, task: TrialTask) -> TrialTask:
        """Return the final run of a configuration that was good in the search (``CarriesOver``).

        Args:
            trial: Number of the final run.
            task: Of the search.
        Raises:
            InfeasibleBudgetError: It has no plan on the rest of the records.
        """
        assert self.rest is not None
        method = self.methods[task.method]
        assert issubclass(method, CarriesOver)
        contexts = self.admission.context(), self.rest.admission.context()
        hparams = asked(method, "carried_over", task.hparams, task.plan, *contexts)
        return self.rest.admit(trial, {"method": task.method, **hparams})

    @cached_property
    def sample(self) -> list[TrialTask]:
        """Tasks of configurations drawn from the space at random, the same ones each time.

        Raises:
            InfeasibleBudgetError: None of them has a plan within the budget.
        """
        tried = list(self.try_points(self.draw(NUM_SAMPLED)))
        tasks = [task for task in tried if isinstance(task, TrialTask)]
        if not tasks:
            self._refuse([error for error in tried if isinstance(error, BadInputError)])
        return tasks

    def check_some_plan(self) -> None:
        """Refuse a space in which a search would find nothing to run.

        Raises:
            InfeasibleBudgetError: No point of the grid has a plan, or none of
                ``MAX_INFEASIBLE_IN_A_ROW`` configurations that are drawn.
        """
        if self.spec.privacy.mode.is_public_search and self.records == "private":
            self.for_public_search().check_some_plan()
        is_grid = self.spec.search.sampler == "grid" or self.spec.episodes is not None
        points = self.space.grid() if is_grid else self.draw(MAX_INFEASIBLE_IN_A_ROW)
        errors = []
        for tried in self.try_points(points):
            if isinstance(tried, TrialTask):
                return
            errors.append(tried)
        self._refuse(errors)

    def draw(self, count: int) -> Iterator[dict[str, Any]]:
        """Draw configurations at random, the same ones each time."""
        rng = np.random.default_rng(self.spec.seed)
        return (self.space.sample(rng) for _ in range(count))

    def try_points(
        self, points: Iterable[Mapping[str, Any]]
    ) -> Iterator[TrialTask | BadInputError]:
        """Yield the task of each configuration, or why it has none."""
        for number, values in enumerate(points):
            try:
                yield self.admit(number, values)
            except BadInputError as error:
                yield error

    def _refuse(self, errors: Sequence[BadInputError]) -> NoReturn:
        first = errors[0]
        reason = f"{first.message}: {first.because}" if first.because else first.message
        tried = f"none of {len(errors)} configurations of it that were tried has a plan"
        if len(errors) == 1:
            tried = "its one configuration has no plan"
        raise InfeasibleBudgetError(
            f"{self.spec.where('search.space')}: {tried}",
            because=with_terms(self.spec, reason),
            fix=first.fix or "change what the reason names, or raise privacy.trial_epsilon",
        )

    def refusal(self, key: str, problem: str, fix: str) -> SpecError:
        """Return the error of one mistake that shows only as plans are made."""
        return SpecError([Mistake(key, problem, fix).at(self.spec.where)])

    def declared_epsilon(self, selection: Charge | None) -> float:
        """Return the epsilon that the whole study is declared to cost, by its accounting mode."""
        privacy = self.spec.privacy
        if selection is not None:
            return selection.epsilon
        if privacy.mode.is_filtered and privacy.study_epsilon is not None:
            return privacy.study_epsilon
        return privacy.trial_epsilon if privacy.mode.is_public_search else math.inf

    @property
    def dataset_name(self) -> str:
        """The declared dataset in a dataset ledger: its kind, and its path if it has one."""
        data = self.spec.data
        return data.dataset if data.path is None else f"{data.dataset}:{Path(data.path).resolve()}"

    @property
    def dataset_parts(self) -> dict[str, Any]:
        """What studies on one ledger of a dataset must agree on, see ``private_parts``."""
        return private_parts(self.spec)

    def check_dataset_budget(self, selection: Charge | None) -> None:
        """Refuse a new study that the dataset's budget does not allow, before it is created.

        Raises:
            DatasetBudgetError: It does not.
        """
        if self.spec.privacy.dataset_ledger is not None and is_new(self.spec):
            self.check_dataset_price(self.declared_epsilon(selection))

    def check_dataset_price(self, epsilon: float) -> None:
        """Refuse a new study of this price that the dataset's ledger does not allow, if it has one.

        Raises:
            DatasetBudgetError: It does not fit.
            BadInputError: The ledger is about other records, or has other caps.
        """
        privacy = self.spec.privacy
        if privacy.dataset_ledger is not None:
            check_dataset_budget(
                privacy.dataset_ledger,
                dataset=self.dataset_name,
                parts=self.dataset_parts,
                epsilon=epsilon,
                delta=privacy.delta,
                cap_epsilon=privacy.dataset_epsilon,
                cap_delta=privacy.dataset_delta,
            )


def valid(spec: SweepSpec) -> SweepSpec:
    """Return a spec whose values have been checked again: ``model_copy(update=..)`` checks none.

    Raises:
        BadInputError: It is no ``SweepSpec`` (``SpecError``: it holds what no spec may hold).
    """
    of_kind("a sweep is run from a SweepSpec", spec, SweepSpec, _FIX)
    try:
        check_made(spec)
        tree = spec.to_dict()
    except Exception as error:  # whatever pydantic and our rules raise at values of other kinds
        fix = "SweepSpec(**{**spec.to_dict(), section: {..}})"
        raise BadInputError("the spec holds a value of a kind that none has", fix=fix) from error
    SweepSpec(**tree)
    return spec


def preflight(spec: SweepSpec) -> Preflight:
    """Check what needs more than the spec alone: methods, space, models, data declaration.

    Args:
        spec: A valid spec.
    Raises:
        SpecError: All mistakes at once.
        DataError: The dataset is not there.
        BadInputError: It is no ``SweepSpec``.
    """
    of_kind("a sweep is run from a SweepSpec", spec, SweepSpec, _FIX)
    spec = with_launched_delta(spec)
    draft, mistakes = read_draft(spec)
    checks = CHECKS if mistakes else (*CHECKS, *CHECKS_OF_METHODS)
    for check in checks:
        mistakes += check(draft)
    _refuse_all(spec, mistakes, is_first_look=checks is CHECKS)
    assert draft.info is not None  # else there was a mistake
    budget = PrivacyBudget(
        target_epsilon=spec.privacy.trial_epsilon,
        delta=spec.privacy.delta,
        neighboring_relation=spec.privacy.neighboring_relation,
    )
    checked = Preflight(spec, draft.space, draft.info, draft.methods, budget).parted()
    try:
        mistakes = list(release_problems(checked.admission, checked.start, checked.start_tasks))
    except BadInputError as error:  # no plan at all
        mistakes = [Mistake("start", error.message, error.fix or "")]
    _refuse_all(spec, mistakes)
    return checked


def _refuse_all(
    spec: SweepSpec, mistakes: Sequence[Mistake], *, is_first_look: bool = False
) -> None:
    """Refuse mistakes, if there are any, with the file and line of each."""
    if mistakes:
        located = [mistake.at(spec.where) for mistake in mistakes]
        raise SpecError(located, is_first_look=is_first_look)

"""Everything that can be known to be wrong before a sweep starts, all of it at once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.errors import BadInputError, DataError, InfeasibleBudgetError, Mistake, SpecError
from dpsweep.hyperparameters import Hyperparameter, resolve
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import Plan
from dpsweep.search_spaces.base import Parameter, SearchSpace
from dpsweep.spec import SweepSpec
from dpsweep.study import TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data import DatasetInfo, describe_dataset
from dpsweep.trainables.method import Method, PlanContext


@dataclass(frozen=True)
class Preflight:
    """A spec whose parts fit together.

    Attributes:
        spec: The spec.
        space: Its search space, checked against the methods' hyperparameters.
        info: Shapes and declared sizes of its data; no record was read.
        methods: The methods the space can choose.
        budget: Cap of one trial.
    """

    spec: SweepSpec
    space: SearchSpace
    info: DatasetInfo
    methods: Mapping[str, type[Method]]
    budget: PrivacyBudget

    @property
    def num_trials(self) -> int:
        """Trials that will run: a grid may have fewer points than ``search.num_trials``."""
        if self.spec.search.sampler != "grid":
            return self.spec.search.num_trials
        return min(self.spec.search.num_trials, len(self.space.grid()))

    def admit(self, trial: int, values: Mapping[str, Any]) -> TrialTask:
        """Return the task of one configuration: its hyperparameters, its plan and their cost.

        Raises:
            InfeasibleBudgetError: The method has no plan within the budget for these values.
        """
        name = values["method"]
        method = self.methods[name]
        given = {key: value for key, value in values.items() if key != "method"}
        hparams = resolve(method.hyperparameters, given)
        for parameter in method.hyperparameters:
            problem = parameter.problem(hparams[parameter.name])
            if problem:
                raise InfeasibleBudgetError(f"{parameter.name} {problem}")
        context = PlanContext(self.budget, self.spec.privacy.accountant, self.info.num_private)
        plan = method.plan(hparams, context).merged()
        epsilon = math.inf
        if method.is_private:
            epsilon = self.epsilon(plan)
            if not epsilon <= self.budget.target_epsilon:
                raise InfeasibleBudgetError(
                    f"the plan costs epsilon={epsilon:.4f} at delta={self.budget.delta:g}, over "
                    f"trial_epsilon={self.budget.target_epsilon:g}"
                )
        return TrialTask(trial, name, hparams, plan, epsilon, method.is_private)

    def epsilon(self, plan: Plan) -> float:
        """Return a plan's epsilon at the study's delta, by the study's accountant."""
        return epsilon_of(
            plan, delta=self.spec.privacy.delta, accountant=self.spec.privacy.accountant
        )


def read_spec(source: Path | str, *, overrides: Sequence[str] = ()) -> SweepSpec:
    """Read a spec, its space checked against the hyperparameters of the methods it names.

    Raises:
        SpecError: Every mistake at once.
    """

    def check(parameters: Sequence[Parameter]) -> Sequence[Mistake]:
        return SearchSpace(parameters).check(_declared())

    return SweepSpec.from_yaml(source, overrides=overrides, check_space=check)


def _declared() -> dict[str, Sequence[Hyperparameter]]:
    return {name: method.hyperparameters for name, method in TRAINABLES.items()}


def _is_writable(path: Path) -> bool:
    """Say whether a directory exists, or could be made, where one may write."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK)


def preflight(spec: SweepSpec) -> Preflight:
    """Check what needs more than the spec alone: methods, space, models, data declaration.

    Args:
        spec: A valid spec.
    Raises:
        SpecError: All mistakes at once.
        DataError: The dataset is not there.
    """
    where = spec.where
    space = SearchSpace.from_spec(spec.search.space)
    mistakes = [Mistake(where(m.where), m.what, m.fix) for m in space.check(_declared())]
    info = None
    try:
        info = describe_dataset(spec.data)
    except DataError as error:
        mistakes.append(Mistake(where("data"), error.message, error.fix or ""))
    if info is not None and info.num_validation == 0:
        what = f"{spec.search.metric} needs validation records, and there are none"
        mistakes.append(Mistake(where("search.metric"), what, "set data.validation.fraction"))
    if not _is_writable(Path(spec.storage.path)):
        what = f"{spec.storage.path!r} cannot be written to"
        mistakes.append(Mistake(where("storage.path"), what, "name a directory of yours"))
    if mistakes or info is None:
        raise SpecError(mistakes)
    methods: dict[str, type[Method]] = {name: TRAINABLES[name] for name in space.values()["method"]}
    for method in methods.values():
        for name, what, fix in method.preflight(space.values(), info):
            mistakes.append(Mistake(where(f"search.space.{name}"), what, fix))
    if mistakes:
        raise SpecError(mistakes)
    budget = PrivacyBudget(
        target_epsilon=spec.privacy.trial_epsilon,
        delta=spec.privacy.delta,
        neighboring_relation=spec.privacy.neighboring_relation,
    )
    return Preflight(spec, space, info, methods, budget)


@dataclass(frozen=True)
class PlanSummary:
    """What a sweep will do, from a sample of its space; nothing was run.

    Attributes:
        num_trials: Trials that will run.
        num_sampled: Configurations drawn for the figures below.
        infeasible: Share of them that have no plan within the budget.
        reasons: Why, most frequent first.
        steps: Smallest and largest number of steps.
        noise_multiplier: Smallest and largest noise multiplier of any step, or None.
        epsilon: Smallest and largest epsilon of a whole trial, or None.
        composed_epsilon: Epsilon if every trial of the sample's mean cost ran, or None.
    """

    num_trials: int
    num_sampled: int
    infeasible: float
    reasons: list[str]
    steps: tuple[int, int] | None
    noise_multiplier: tuple[float, float] | None
    epsilon: tuple[float, float] | None
    composed_epsilon: float | None
    delta: float
    accountant: str
    accounting: str
    privacy_unit: str
    neighboring_relation: str
    sampling: str

    def to_dict(self) -> dict[str, Any]:
        """Return the record that ``dpsweep plan --json`` prints (a stable interface)."""
        return {
            "trials": self.num_trials,
            "configurations_sampled": self.num_sampled,
            "infeasible_share": self.infeasible,
            "infeasible_because": self.reasons,
            "steps_per_trial": list(self.steps) if self.steps else None,
            "noise_multiplier": list(self.noise_multiplier) if self.noise_multiplier else None,
            "epsilon_per_trial": list(self.epsilon) if self.epsilon else None,
            "delta": self.delta,
            "privacy_unit": self.privacy_unit,
            "neighboring_relation": self.neighboring_relation,
            "sampling": self.sampling,
            "accountant": self.accountant,
            "accounting": self.accounting,
            "study_epsilon": None,
            "composed_epsilon_indication": self.composed_epsilon,
            "composed_accountant": "rdp",
        }


def summarize_plan(checked: Preflight, *, num_samples: int = 32) -> PlanSummary:
    """Draw configurations from the space and plan them, without data, Ray or tracking."""
    spec = checked.spec
    rng = np.random.default_rng(spec.seed)
    tasks: list[TrialTask] = []
    reasons: dict[str, int] = {}
    grid = checked.space.grid() if spec.search.sampler == "grid" else None
    draws = grid[:num_samples] if grid else [checked.space.sample(rng) for _ in range(num_samples)]
    for number, values in enumerate(draws):
        try:
            tasks.append(checked.admit(number, values))
        except BadInputError as error:
            reasons[error.message] = reasons.get(error.message, 0) + 1
    sigmas = [
        run.event.noise_multiplier
        for task in tasks
        for run in task.plan.runs
        if hasattr(run.event, "noise_multiplier")
    ]
    private = [task for task in tasks if task.is_private]
    composed = None
    if private and len(private) == len(tasks):
        copies = [private[i % len(private)].plan for i in range(checked.num_trials)]
        total = Plan(tuple(run for plan in copies for run in plan.runs))
        composed = epsilon_of(total, delta=spec.privacy.delta, accountant="rdp")
    return PlanSummary(
        num_trials=checked.num_trials,
        num_sampled=len(draws),
        infeasible=1 - len(tasks) / len(draws),
        reasons=sorted(reasons, key=lambda reason: -reasons[reason])[:3],
        steps=_range([len(task.plan) for task in tasks]),
        noise_multiplier=_range(sigmas),
        epsilon=_range([task.planned_epsilon for task in private]),
        composed_epsilon=composed,
        delta=spec.privacy.delta,
        accountant=spec.privacy.accountant,
        accounting=spec.privacy.accounting,
        privacy_unit=spec.data.privacy_unit,
        neighboring_relation=spec.privacy.neighboring_relation,
        sampling=", ".join(sorted({task.plan.sampling for task in tasks})) or "none",
    )


def _range(values: list[Any]) -> tuple[Any, Any] | None:
    return (min(values), max(values)) if values else None

"""Admission of a configuration: it becomes a task with its plan and its cost, or why it cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dpsweep.foundation.errors import BadInputError, InfeasibleBudgetError
from dpsweep.foundation.words import counted
from dpsweep.planning.reading import platform_hyperparameters
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.events import EventRun, Gaussian, Plan
from dpsweep.privacy.signal_to_noise import refuse_drowned, signal_to_noise
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.spec.space.hyperparameters import Hyperparameter, resolve
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialTask, report_interval
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.releases import ReleaseKey
from dpsweep.trainables.data.tasks import task_of
from dpsweep.trainables.hooks import PublicScores, release_key
from dpsweep.trainables.method import Method, PlanContext
from dpsweep.trainables.networks.own_models import fingerprint, is_own
from dpsweep.trainables.outside import asked, brought_by, is_outside, shown_name


@dataclass(frozen=True)
class Admission:
    """The means to make one configuration a task: public facts, a budget, and methods.

    Attributes:
        spec: The spec.
        info: Shapes and declared sizes of the data of a trial; no record was read.
        methods: The methods that a configuration may name.
        budget: Cap of one trial.
        training: What its training may cost of it; None: all of it.
        records: Which records its trials train on (``Preflight.for_public_search``, ``rest``).
        starts: The private events of every release that trials may start from.
        composition: Of a study that has begun, whose declared events are run as they are on record
            (``Composition.as_declared``).
        codes: Networks of the user's own -> SHA-256 of the file, from its first trial on.
    """

    spec: SweepSpec
    info: DatasetInfo
    methods: Mapping[str, type[Method]]
    budget: PrivacyBudget
    records: Literal["private", "public", "rest"] = "private"
    starts: Mapping[ReleaseKey, Plan] = field(default_factory=dict)
    composition: Composition | None = None
    training: PrivacyBudget | None = None
    codes: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def admit(self, trial: int, values: Mapping[str, Any]) -> TrialTask:
        """Return the task of one configuration: its hyperparameters, its plan and their cost.

        Raises:
            InfeasibleBudgetError: The method has no plan within the budget for these values.
        """
        name = values["method"]
        method = self.methods[name]
        chosen = {key: value for key, value in values.items() if key != "method"}
        declared = method.hyperparameters + platform_hyperparameters(self.spec)
        hparams = resolve(declared, chosen)
        for parameter in declared:
            problem = parameter.problem(hparams[parameter.name])
            if problem:
                raise InfeasibleBudgetError(f"{parameter.name} {problem}")
        context = self.context(frozenset(chosen))
        hparams = _completed(method, declared, hparams, context)
        inherited = release_of(method, hparams, self.starts)
        plan = self._as_declared(method, _plan_of(method, hparams, context))
        barrier = self._barrier_of(plan)
        task = TrialTask(
            trial,
            name,
            hparams,
            plan,
            planned_epsilon=math.inf,
            is_private=method.is_private,
            validation_plan=self.releases(len(plan), extra=1 if barrier else 0),
            inherited=inherited,
            barrier=barrier,
            barrier_scores=self._scores_until(barrier, len(plan)),
            code=self._code_of(hparams.get("model.name")),
        )
        if not method.is_private:
            return task
        epsilon = self.epsilon(inherited + task.full_plan)
        scores = self.epsilon(task.validation_plan)
        if not scores <= self.budget.target_epsilon:
            raise InfeasibleBudgetError(
                f"{counted(len(task.validation_plan), 'noisy score')} alone cost epsilon="
                f"{shown_epsilon(scores)} at delta={shown_delta(self.budget.delta)}, over "
                f"trial_epsilon={self.budget.target_epsilon:g}",
                fix="a larger data.validation.noise_std, or fewer report.points",
            )
        trained = epsilon if self.training is None else self.epsilon(inherited + task.charges)
        for cost, cap in ((epsilon, self.budget), (trained, self.training or self.budget)):
            if not cost <= cap.target_epsilon:
                raise InfeasibleBudgetError(
                    f"the plan costs epsilon={shown_epsilon(cost)} at delta="
                    f"{shown_delta(cap.delta)}, over "
                    f"{'trial_epsilon=' if cap is self.budget else ''}{cap.target_epsilon:g}"
                )
        refuse_drowned(self.signal(plan, hparams), plan, epsilon=epsilon, delta=self.budget.delta)
        if self.records == "public":
            epsilon = 0.0  # planned as if the records were private, and free
        return replace(task, planned_epsilon=epsilon, records=self.records)

    def context(self, given: frozenset[str] | None = None) -> PlanContext:
        """Return what plans are made with, for a configuration that names these hyperparameters."""
        return PlanContext(
            self.training or self.budget,
            self.spec.privacy.accountant,
            self.info.num_private,
            self.spec.data.validation.visibility,
            self.starts,
            given,
        )

    def signal(self, plan: Plan, hparams: Mapping[str, Any]) -> float | None:
        """Return the signal over the noise of a plan, at best
        (``dpsweep.privacy.signal_to_noise``)."""
        wanted = hparams.get("train.num_private")
        num_private = self.info.num_private
        return signal_to_noise(plan, num_private if wanted is None else min(wanted, num_private))

    def releases(self, num_steps: int, *, extra: int = 0) -> Plan:
        """Return the noisy scores of one trial: one a report, rungs and extra ones included."""
        num_steps = max(num_steps, 1)  # an empty plan makes one report too
        every = report_interval(num_steps, self.spec.report.every_steps, self.spec.report.points)
        count = math.ceil(num_steps / every) + len(self.spec.rungs) + extra
        return self._scores(count)

    def _as_declared(self, method: type[Method], plan: Plan) -> Plan:
        """Return the plan of a method that takes all its noise from it, as the study declares it.

        Ours do. What the process of another package's does is not known here.
        """
        if self.composition is None or self.records != "private" or is_outside(method):
            return plan
        return self.composition.as_declared(plan)

    def _code_of(self, network: object) -> str:
        """Return the SHA-256 of an own network's file; a launch has one, whatever is edited."""
        if not is_own(network):
            return ""
        name = str(network)
        return self.codes.setdefault(name, fingerprint(name))

    def _barrier_of(self, plan: Plan) -> int:
        """Return where a trial waits to be promoted; 0 under a scheduler that has no barrier.

        Raises:
            InfeasibleBudgetError: The plan has no noisy prefix to wait at the end of.
        """
        if self.spec.scheduler.type != "noisy_prefix":
            return 0
        if not 0 < plan.prefix_end < len(plan):
            raise InfeasibleBudgetError(
                "the plan has no noisy prefix, at the end of which scheduler noisy_prefix compares "
                "trials",
                fix="add noise.prefix_factor: 4, of a method of noisy gradients",
            )
        return plan.prefix_end

    def _scores_until(self, position: int, num_steps: int) -> int:
        """Return the number of noisy scores up to a position, the one that is made there included.

        So many may be needed: the grid of reports has points before it, or it itself.
        """
        if position == 0 or self.validation_noise is None:
            return 0
        every = report_interval(num_steps, self.spec.report.every_steps, self.spec.report.points)
        return (position - 1) // every + 1

    @property
    def score(self) -> Plan:
        """The events of one noisy score; none where scores cost nothing."""
        return self._scores(1)

    def _scores(self, count: int) -> Plan:
        noise = self.validation_noise
        if noise is None:
            return Plan(())
        return Plan((EventRun(Gaussian(noise), count, phase="validation", part="validation"),))

    @property
    def validation_noise(self) -> float | None:
        """Noise multiplier of a released number of correct validation records, or None.

        A released accuracy is that count, whose sensitivity is 1, over the declared number.
        """
        noise_std = self.spec.data.validation.noise_std
        return None if noise_std is None else noise_std * self.info.num_validation

    @property
    def released_metrics(self) -> frozenset[str]:
        """Names of the metrics that an actor may report."""
        every = task_of(self.info.task).metric_names(self.info.class_names)
        is_noisy = self.spec.data.validation.visibility == "noisy"
        names = ("accuracy",) if is_noisy else every
        test = self.spec.data.test
        written = () if test.generation is None else test.generation.scores
        tested = (*every, *written) if test.visibility == "public" else ()
        scoring = [method for method in self.methods.values() if issubclass(method, PublicScores)]
        public = [name for method in scoring for name in asked(method, "public_metrics")]
        shown = {"validation": names, "test": tested, "public": public}
        return frozenset(f"{part}/{name}" for part, names in shown.items() for name in names)

    def epsilon(self, plan: Plan) -> float:
        """Return a plan's epsilon at the study's delta, by the study's accountant."""
        return epsilon_of(
            plan, delta=self.spec.privacy.delta, accountant=self.spec.privacy.accountant
        )


def release_of(
    method: type[Method], hparams: Mapping[str, Any], starts: Mapping[ReleaseKey, Plan]
) -> Plan:
    """Return the events that a configuration inherits; none if it starts from no release.

    Raises:
        BadInputError: There is no such release.
    """
    key = release_key(method, hparams)
    if key is None:
        return Plan(())
    if key not in starts:
        run, epsilon = key
        raise BadInputError(f"no release of run {run} at epsilon {epsilon:g}")
    return starts[key]


def _completed(
    method: type[Method],
    declared: Sequence[Hyperparameter],
    hparams: Mapping[str, Any],
    context: PlanContext,
) -> dict[str, Any]:
    """Return the hyperparameters of one configuration, those that follow from the study filled in.

    Raises:
        BadInputError: The method is of another package, and returns others than it declares, or
            values that it does not take.
    """
    values: dict[str, Any] = asked(method, "complete", hparams, context)
    if not is_outside(method):
        return values
    others = sorted({each.name for each in declared} ^ set(values))
    problems = [f"another set of names: {', '.join(others)}"] if others else []
    for each in () if others else declared:
        problem = each.problem(values[each.name])
        problems += [f"{each.name}, which {problem}"] if problem else []
    if problems:
        raise BadInputError(
            f"`complete` of {shown_name(method)} has returned {problems[0]}",
            because=f"another package brings it: {brought_by(method)}",
            fix="let it return every hyperparameter that is declared, with a value that it takes",
        )
    return dict(values)


def _plan_of(method: type[Method], hparams: Mapping[str, Any], context: PlanContext) -> Plan:
    """Return the plan of one configuration; another package's is asked for twice.

    Raises:
        BadInputError: The method is of another package, and fails, has another plan each time, or
            one with events on records that it does not train on.
    """
    if not is_outside(method):
        return method.plan(hparams, context).merged()
    first, second = (asked(method, "plan", dict(hparams), context).merged() for _ in range(2))
    if first != second:
        raise BadInputError(
            f"`plan` of {shown_name(method)} has returned two plans for one configuration",
            because=f"another package brings it: {brought_by(method)}",
            fix="let it depend on its arguments alone",
        )
    others = sorted({run.part for run in first.runs} - {"private", "public"})
    if others:
        raise BadInputError(
            f"`plan` of {shown_name(method)} has events on {', '.join(others)} records",
            because=f"another package brings it: {brought_by(method)}",
            fix="leave them out: scores on validation records are charged by dpsweep itself",
        )
    return first

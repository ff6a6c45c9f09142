"""Subject of an audit: a configuration with its plan, and the claim that is put to the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.privacy.terms import SINGLE_RUN, AccountantName
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies
from dpsweep.trainables.hooks import Auditable, FromRelease
from dpsweep.trainables.method import Method, PlanContext
from dpsweep.trainables.networks.own_models import refuse_changed

if TYPE_CHECKING:
    from dpsweep.study.trial import TrialTask

#: Declared sizes and shape of the built-in study that methods are audited on.
BUILT_IN = DatasetInfo(
    name="synthetic",
    input_shape=(1, 16, 16),
    num_classes=10,
    num_private=1000,
    num_validation=100,
    num_test=0,
    num_public=100,
    class_names=tuple(str(number) for number in range(10)),
)
DELTA = 1e-5
#: Hyperparameters of its trials, as far as a method declares them.
_GIVEN: Mapping[str, Any] = {
    "model.name": "tanh_cnn",
    "batch.expected": 100,
    "clip.max_grad_norm": 0.5,
    "noise.noise_multiplier": None,
}


@dataclass(frozen=True)
class Subject:
    """A configuration, with all that it is run with but its records.

    Attributes:
        name: Study that it is of; empty for a method of the table.
        trial: Its number.
        method: Name of the method.
        hparams: Every hyperparameter with its value.
        plan: Its privacy events.
        info: Shape and declared sizes of the records.
        delta: Of the claim.
        accountant: Of the claim.
        accounting: Mode of the study, or ``single_run``.
        privacy_unit: Of the study.
        study_seed: Of public randomness.
        own_seed: The trial's own, where it has one.
        supplies: Public weights, where it starts from some; no store of features, which is for
            those of the study's records.
        beside: What its trial spends besides its plan, which an audit does not follow.
    """

    name: str
    trial: int
    method: str
    hparams: Mapping[str, Any]
    plan: Plan
    info: DatasetInfo
    delta: float
    accountant: AccountantName
    accounting: str = SINGLE_RUN
    privacy_unit: str = "example"
    study_seed: int = 0
    own_seed: int | None = None
    supplies: Supplies = NO_SUPPLIES
    beside: tuple[str, ...] = ()

    @classmethod
    def of_task(cls, task: TrialTask, info: DatasetInfo, **terms: Any) -> Subject:
        """Return the subject that an admitted trial is.

        A trial on ``train.num_private`` records becomes one that declares as many: every rate and
        divisor is the same.

        Raises:
            BadInputError: It makes no claim, reads no private record, or releases nothing that an
                audit can follow.
        """
        which = f"trial {task.trial} ({task.method})"
        if not task.is_private:
            raise BadInputError(
                f"{which} makes no privacy claim, so there is nothing to audit",
                fix="audit a private trial",
            )
        if task.records == "public" or not task.plan.part("private"):
            raise BadInputError(
                f"{which} reads no private record of its own, so there is nothing to audit",
                fix="audit a trial that does",
            )
        refuse_changed(task.hparams, task.code)
        kind: type[Method] = TRAINABLES[task.method]
        if not can_follow(kind):
            runs = task.plan.part("private").runs
            names = dict.fromkeys(f"{run.phase} ({run.event.name})" for run in runs)
            raise BadInputError(
                f"an audit cannot follow {which}: {', '.join(names)}",
                because="it follows noisy sums of clipped gradients, of methods that tell what "
                "each record adds to them (the hook Auditable, trainables/hooks.py)",
                fix="docs/auditing.md has the methods that are followed",
            )
        beside = []
        if task.validation_plan:
            beside.append("noisy validation scores")
        if task.inherited:
            beside.append("the run whose model it starts from")
        return cls(
            trial=task.trial,
            method=task.method,
            hparams=dict(task.hparams),
            plan=task.plan,
            info=info,
            own_seed=task.seed,
            beside=tuple(beside),
            **terms,
        )

    @property
    def method_class(self) -> type[Method]:
        """The class of its method."""
        kind: type[Method] = TRAINABLES[self.method]
        return kind

    def first(self, num_positions: int | None) -> Plan:
        """Return the plan's first positions, all of them without a number."""
        length = len(self.plan)
        return self.plan.slice(0, length if num_positions is None else min(num_positions, length))

    def claim(self, plan: Plan) -> float:
        """Return the epsilon of positions, as the study bounds it."""
        return epsilon_of(plan, delta=self.delta, accountant=self.accountant)


def unsampled(plan: Plan) -> Plan:
    """Return the events as they are for one who knows who is in each batch."""
    return Plan(
        tuple(
            replace(run, event=Gaussian(run.event.noise_multiplier))
            if isinstance(run.event, PoissonGaussian)
            else run
            for run in plan.runs
        )
    )


def rate_of(run: EventRun) -> float | None:
    """Return the sampling rate of a run that an audit can follow; None for other events."""
    if run.part != "private":
        return None
    if isinstance(run.event, PoissonGaussian):
        return run.event.sample_rate
    return 1.0 if isinstance(run.event, Gaussian) else None


def built_in(
    method: str, epsilon: float, steps: int, others: Mapping[str, Any] | None = None
) -> Subject:
    """Return a small configuration of a method of the table, on synthetic records.

    Args:
        method: Name in the table.
        epsilon: That its plan is calibrated to.
        steps: Steps that it takes, where the method lets that be said.
        others: Hyperparameters that it has besides, or in the place of these.
    Raises:
        InfeasibleBudgetError: The method has no such plan.
    """
    kind: type[Method] = TRAINABLES[method]
    if not can_follow(kind):
        why = "its releases are not followed" if kind.is_private else "it makes no privacy claim"
        return Subject("", 0, method, {}, Plan(), BUILT_IN, DELTA, "rdp", beside=(why,))
    declared = {parameter.name: parameter for parameter in kind.hyperparameters}
    wanted = {**_GIVEN, "train.max_steps": steps}
    if "features.name" in declared and "model.name" not in declared:
        wanted["features.name"] = "none"  # the records are features enough for a linear head
    chosen = {
        name: value
        for name, value in wanted.items()
        if name in declared and declared[name].problem(value) is None
    } | dict(others or {})
    budget = PrivacyBudget(target_epsilon=epsilon, delta=DELTA)
    context = PlanContext(budget, "rdp", BUILT_IN.num_private, given=frozenset(chosen))
    hparams = kind.complete(resolve(kind.hyperparameters, chosen), context)
    plan = kind.plan(hparams, context)
    return Subject("", 0, method, hparams, plan, BUILT_IN, DELTA, "rdp")


def can_follow(kind: type[Method]) -> bool:
    """Say whether an audit can follow a method's releases at all."""
    return kind.is_private and issubclass(kind, Auditable) and not issubclass(kind, FromRelease)

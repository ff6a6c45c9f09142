"""The private run that trials start from: checked, planned and run before the search.

It is a trial of the study like any other, with the first numbers, a ledger and a reservation of its
own. What it releases on its way is charged there, once. Trials that start from a release name its
events as inherited: their own epsilon covers them, the study's sum has them already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import Mistake
from dpsweep.foundation.registry import did_you_mean
from dpsweep.foundation.words import counted
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.releases import ReleaseKey
from dpsweep.trainables.hooks import (
    ChecksStart,
    FromRelease,
    OnFrozenFeatures,
    TrainsSome,
    may_start,
)
from dpsweep.trainables.outside import asked

if TYPE_CHECKING:
    from dpsweep.planning.admission import Admission
    from dpsweep.spec.start import StartSpec
    from dpsweep.spec.study import SweepSpec
    from dpsweep.study.trial import TrialTask
    from dpsweep.trainables.data.dataset import DatasetInfo
    from dpsweep.trainables.method import Method


def start_problems(
    spec: SweepSpec,
    methods: Mapping[str, type[Method]],
    values: Mapping[str, Sequence[Any]],
    info: DatasetInfo,
) -> list[Mistake]:
    """Return what is wrong about the start.

    Args:
        spec: A valid spec.
        methods: The methods that its space can choose.
        values: What the space can give to each hyperparameter.
        info: Shapes and declared sizes of the data.
    """
    block = spec.start
    users = [name for name, method in methods.items() if issubclass(method, FromRelease)]
    if block is None:
        statement = "starts from a private model, and the section start is missing"
        fix = "add start: with epsilons and hyperparameters"
        return [Mistake("search.space.method", f"{name} {statement}", fix) for name in users]
    if not users:
        able = " or ".join(
            name for name, m in TRAINABLES.loadable().items() if issubclass(m, FromRelease)
        )
        statement = "no method of the space starts from it"
        return [Mistake("start", statement, f"use method: {able}, or remove the section")]
    trainers = start_methods()
    if block.method not in trainers:
        is_there = block.method in TRAINABLES
        statement = "trains no whole network privately" if is_there else "there is no such method"
        fix = did_you_mean(block.method, list(trainers)) or f"one of {', '.join(trainers)}"
        return [Mistake("start.method", f"{block.method}: {statement}", fix)]
    problems = _hyperparameter_problems(block, info)
    released = ", ".join(f"{epsilon:g}" for epsilon in block.epsilons)
    for epsilon in values.get("start.epsilon", ()):
        if epsilon is not None and epsilon not in block.epsilons:
            statement = f"{epsilon:g} is not released by the start, which releases {released}"
            problems.append(Mistake("search.space.start.epsilon", statement, "name one of these"))
    starting = [name for name in users if may_start(methods[name], values)]
    for run in values.get("start.run", (0,)):
        if starting and block.runs == 0:
            statement = f"is 0, and configurations of {starting[0]} start from a run"
            problems.append(Mistake("start.runs", statement, "raise it"))
            break
        if starting and run >= block.runs:
            runs = counted(block.runs, "run")
            statement = f"{run} is none of the start's {runs}, which are numbered from 0"
            problems.append(
                Mistake("search.space.start.run", statement, "lower it, or raise start.runs")
            )
    if not problems:
        hparams = resolve(trainers[block.method].hyperparameters, block.hyperparameters)
        for name in users:
            method = methods[name]
            if issubclass(method, ChecksStart):
                problems += asked(method, "start_problems", values, info, hparams)
    return problems


def start_methods() -> dict[str, type[Method]]:
    """Return the methods that a start can be trained by, by name.

    They are private, start from nothing themselves and train all of a network that
    ``model.name`` names, so that others can build it again and load its weights. They leave the
    labels of public records alone, which trials buy one by one.
    """
    others = (FromRelease, OnFrozenFeatures, TrainsSome)
    methods = TRAINABLES.loadable()
    return {
        name: method
        for name, method in methods.items()
        if method.is_private
        and not method.reads_public_labels
        and not any(issubclass(method, hook) for hook in others)
        and {"model.name", "model.norm"} <= {parameter.name for parameter in method.hyperparameters}
    }


def _hyperparameter_problems(block: StartSpec, info: DatasetInfo) -> list[Mistake]:
    method = TRAINABLES[block.method]
    declared = {parameter.name: parameter for parameter in method.hyperparameters}
    problems: list[Mistake] = []
    for name, value in block.hyperparameters.items():
        key = f"start.hyperparameters.{name}"
        if name not in declared:
            hint = did_you_mean(name, list(declared))
            problem = f"{block.method} has no hyperparameter {name!r}"
            problems.append(
                Mistake(key, problem, hint or f"`dpsweep describe {block.method}` lists them")
            )
            continue
        wrong = declared[name].problem(value)
        if wrong is not None:
            problems.append(Mistake(key, wrong, f"see {name} in `dpsweep describe {block.method}`"))
    if problems:
        return problems
    values = {name: [value] for name, value in block.hyperparameters.items()}
    wanted = block.hyperparameters.get("train.num_private")
    if wanted is not None and wanted > info.num_private:
        problem = f"{wanted} is more than the {info.num_private} declared private records"
        problems.append(Mistake("start.hyperparameters.train.num_private", problem, "lower it"))
        return problems
    own = asked(method, "preflight", values, info)
    return [mistake.below("start.hyperparameters") for mistake in own]


def start_notes(
    spec: SweepSpec, methods: Mapping[str, type[Method]], values: Mapping[str, Sequence[Any]]
) -> list[str]:
    """Return what of a start is trained, and charged, in vain."""
    if spec.start is None or not spec.start.runs:
        return []
    used: set[int] = set()
    if any(may_start(method, values) for method in methods.values()):
        used.update(values.get("start.run", (0,)))
    idle = [str(run) for run in range(spec.start.runs) if run not in used]
    if not idle:
        return []
    clause = "starts from it" if spec.start.runs == 1 else f"starts from run {', '.join(idle)}"
    return [
        f"start.runs is {spec.start.runs}, but no configuration {clause}; it costs all the same"
    ]


def start_tasks(admission: Admission) -> list[TrialTask]:
    """Return the runs of a spec's start, the first trials of its study; none without a start.

    Raises:
        InfeasibleBudgetError: The hyperparameters have no plan within the largest epsilon.
    """
    block = admission.spec.start
    if block is None or not block.runs:
        return []
    target = replace(admission.budget, target_epsilon=block.epsilons[-1])
    planner = replace(
        admission, methods={block.method: TRAINABLES[block.method]}, budget=target, starts={}
    )
    task = planner.admit(0, {"method": block.method, **block.hyperparameters})
    scores = planner.releases(len(task.plan), extra=len(block.epsilons))
    task = replace(task, releases=block.epsilons, validation_plan=scores)
    return [replace(task, trial=run) for run in range(block.runs)]


@dataclass(frozen=True)
class StartSummary:
    """The plan of a start, from public facts.

    Attributes:
        runs: Independent runs.
        method: Trains each.
        steps: Of each.
        noise_multiplier: Smallest and largest of any step; None where no noise is a Gaussian's.
        sampling: How batches are drawn.
        releases: The epsilon that is asked for -> last step within it, and its epsilon.
    """

    runs: int
    method: str
    steps: int
    noise_multiplier: tuple[float, float] | None
    sampling: str
    releases: Mapping[float, tuple[int, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready values; delta and the other terms are the study's."""
        return {
            "runs": self.runs,
            "method": self.method,
            "steps": self.steps,
            "noise_multiplier": list(self.noise_multiplier) if self.noise_multiplier else None,
            "sampling": self.sampling,
            "releases": [
                {"within": within, "step": step, "epsilon": epsilon}
                for within, (step, epsilon) in self.releases.items()
            ],
        }

    def __str__(self) -> str:
        noise = ""
        if self.noise_multiplier is not None:
            low, high = (f"{sigma:.6g}" for sigma in self.noise_multiplier)
            noise = f", noise multiplier {low if low == high else f'{low} to {high}'}"
        released = ", ".join(
            f"{shown_epsilon(epsilon)} (step {step})" for step, epsilon in self.releases.values()
        )
        return (
            f"{self.runs} {'run' if self.runs == 1 else 'runs'} of {self.method}, {self.steps} "
            f"steps ({self.sampling}){noise}; released at epsilon {released}"
        )


def summarize_start(spec: SweepSpec, tasks: Sequence[TrialTask]) -> StartSummary | None:
    """Return what the start of a spec will do, if nothing is lost to crashes; None without runs.

    A release that is over before the first step has position 0.

    Raises:
        InfeasibleBudgetError: The hyperparameters have no plan within the largest epsilon.
    """
    if not tasks:
        return None
    block, privacy, plan = spec.start, spec.privacy, tasks[0].plan
    assert block is not None
    clock = EpsilonClock(plan, delta=privacy.delta, accountant=privacy.accountant)
    positions = {epsilon: clock.last_allowed(epsilon) for epsilon in block.epsilons}
    noise = [sigma for run in plan.runs if (sigma := run.event.relative_noise()) is not None]
    return StartSummary(
        runs=block.runs,
        method=block.method,
        steps=len(plan),
        noise_multiplier=(min(noise), max(noise)) if noise else None,
        sampling=plan.sampling,
        releases={
            epsilon: (position, clock.epsilon_after(position))
            for epsilon, position in positions.items()
        },
    )


def release_problems(
    admission: Admission, summary: StartSummary | None, tasks: Sequence[TrialTask]
) -> Iterator[Mistake]:
    """Yield the releases that are over before the first step.

    Raises:
        InfeasibleBudgetError: The hyperparameters have no plan within the largest epsilon.
    """
    privacy = admission.spec.privacy
    for index, (within, (position, _)) in enumerate(summary.releases.items() if summary else ()):
        if position == 0:
            first = admission.epsilon(tasks[0].plan.slice(0, 1))
            yield Mistake(
                f"start.epsilons[{index}]",
                f"{within:g} is over before the first step, which costs {shown_epsilon(first)} at "
                f"delta={shown_delta(privacy.delta)} ({privacy.accountant}, "
                f"{privacy.neighboring_relation}, {privacy.accounting})",
                "raise it, or give the start more noise (fewer examples a batch, more steps)",
            )


def planned_starts(
    summary: StartSummary | None, tasks: Sequence[TrialTask]
) -> dict[ReleaseKey, Plan]:
    """Return the events of every release as they are planned, before anything has run."""
    if summary is None:
        return {}
    plan = tasks[0].plan
    return {
        (run, within): plan.slice(0, position)
        for run in range(summary.runs)
        for within, (position, _) in summary.releases.items()
    }

"""The private run that trials start from: checked, planned and run before the search.

It is a trial of the study like any other, with the first numbers, a ledger and a reservation of its
own. What it releases on its way is charged there, once. Trials that start from a release name its
events as inherited: their own epsilon covers them, the study's sum has them already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpsweep.durable import read_log
from dpsweep.errors import BadInputError, InfeasibleBudgetError, StudyError, SweepError
from dpsweep.hyperparameters import resolve
from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import Plan
from dpsweep.privacy.ledger import releases_of, trial_file, trial_spent
from dpsweep.registry import did_you_mean
from dpsweep.trainables.dp_sgd import DPSGD
from dpsweep.trainables.starts import Release, ReleaseKey, Starts, release_name
from dpsweep.trial import TrialState

if TYPE_CHECKING:
    from dpsweep.journal import StudyView
    from dpsweep.preflight import Preflight
    from dpsweep.spec import SweepSpec
    from dpsweep.spec_start import StartSpec
    from dpsweep.study import StudyFiles, TrialTask
    from dpsweep.trainables.data import DatasetInfo
    from dpsweep.trainables.method import Method

Problem = tuple[str, str, str]


def start_problems(
    spec: SweepSpec,
    methods: Mapping[str, type[Method]],
    values: Mapping[str, Sequence[Any]],
    info: DatasetInfo,
) -> list[Problem]:
    """Return what is wrong about the start: (key of the spec, what, how to fix it).

    Args:
        spec: A valid spec.
        methods: The methods that its space can choose.
        values: What the space can give to each hyperparameter.
        info: Shapes and declared sizes of the data.
    """
    block = spec.start
    users = [name for name, method in methods.items() if method.uses_start]
    if block is None:
        what = "starts from a private model, and the section start is missing"
        fix = "add start: with epsilons and hyperparameters of dp_sgd"
        return [("search.space.method", f"{name} {what}", fix) for name in users]
    if not users:
        what = "no method of the space starts from it"
        return [("start", what, "use method: active_learning, or remove the section")]
    problems = _hyperparameter_problems(block, info)
    known = ", ".join(f"{epsilon:g}" for epsilon in block.epsilons)
    for epsilon in values.get("start.epsilon", ()):
        if epsilon is not None and epsilon not in block.epsilons:
            what = f"{epsilon:g} is not released by the start, which releases {known}"
            problems.append(("search.space.start.epsilon", what, "name one of these"))
    for run in values.get("start.run", ()):
        if run >= block.runs:
            what = f"{run} is none of the start's {block.runs} runs, which are numbered from 0"
            problems.append(("search.space.start.run", what, "lower it, or raise start.runs"))
    if not problems:
        hparams = resolve(DPSGD.hyperparameters, block.hyperparameters)
        for name in users:
            problems += methods[name].start_problems(values, info, hparams)
    return problems


def _hyperparameter_problems(block: StartSpec, info: DatasetInfo) -> list[Problem]:
    declared = {parameter.name: parameter for parameter in DPSGD.hyperparameters}
    problems: list[Problem] = []
    for name, value in block.hyperparameters.items():
        key = f"start.hyperparameters.{name}"
        if name not in declared:
            hint = did_you_mean(name, list(declared))
            what = f"dp_sgd has no hyperparameter {name!r}"
            problems.append((key, what, hint or "`dpsweep describe dp_sgd` lists them"))
            continue
        wrong = declared[name].problem(value)
        if wrong is not None:
            problems.append((key, wrong, f"see {name} in `dpsweep describe dp_sgd`"))
    if problems:
        return problems
    values = {name: [value] for name, value in block.hyperparameters.items()}
    wanted = block.hyperparameters.get("train.num_private")
    if wanted is not None and wanted > info.num_private:
        what = f"{wanted} is more than the {info.num_private} declared private records"
        problems.append(("start.hyperparameters.train.num_private", what, "lower it"))
        return problems
    found = DPSGD.preflight(values, info)
    return [(f"start.hyperparameters.{name}", what, fix) for name, what, fix in found]


def start_tasks(checked: Preflight) -> list[TrialTask]:
    """Return the runs of a spec's start, the first trials of its study; none without a start.

    Raises:
        InfeasibleBudgetError: A release is over before the first step.
    """
    block = checked.spec.start
    if block is None:
        return []
    target = replace(checked.budget, target_epsilon=block.epsilons[-1])
    planner = replace(checked, methods={DPSGD.name: DPSGD}, budget=target, given_starts={})
    task = planner.admit(0, {"method": DPSGD.name, **block.hyperparameters})
    _positions(checked, block, task.plan)  # refuses what cannot be released
    scores = planner.releases(len(task.plan), extra=len(block.epsilons))
    task = replace(task, releases=block.epsilons, validation_plan=scores)
    return [replace(task, trial=run) for run in range(block.runs)]


def _positions(checked: Preflight, block: StartSpec, plan: Plan) -> tuple[int, ...]:
    """Return the last position within each of the epsilons, if nothing is lost to crashes."""
    privacy = checked.spec.privacy
    clock = EpsilonClock(plan, delta=privacy.delta, accountant=privacy.accountant)
    positions = tuple(clock.last_allowed(epsilon) for epsilon in block.epsilons)
    for epsilon, position in zip(block.epsilons, positions):
        if position == 0:
            raise InfeasibleBudgetError(
                f"start.epsilons: {epsilon:g} is over before the first step, which costs "
                f"{clock.epsilon_after(1):.4g} at delta={privacy.delta:g} ({privacy.accountant}, "
                f"{privacy.neighboring_relation}, {privacy.accounting})",
                fix="raise it, or give the start more noise (fewer examples a batch, more steps)",
            )
    return positions


def planned_starts(checked: Preflight) -> dict[ReleaseKey, Plan]:
    """Return the events of every release as they are planned, before anything has run."""
    block = checked.spec.start
    if block is None:
        return {}
    plan = checked.start_tasks[0].plan
    positions = _positions(checked, block, plan)
    return {
        (run, epsilon): plan.slice(0, position)
        for run in range(block.runs)
        for epsilon, position in zip(block.epsilons, positions)
    }


def find_starts(spec: SweepSpec, files: StudyFiles) -> Starts | None:
    """Return the releases of a study whose start has run; None without a start.

    Raises:
        StudyError: A release is not on the ledger of its run.
    """
    block = spec.start
    if block is None:
        return None
    releases = {
        key: Release(files.trial(key[0]), release_name(index), record["sha256"])
        for key, index, record in _on_record(spec, block, files)
    }
    return Starts(resolve(DPSGD.hyperparameters, block.hyperparameters), releases)


def charged_starts(spec: SweepSpec, files: StudyFiles) -> dict[ReleaseKey, Plan]:
    """Return the events of every release as the ledgers have them, lost attempts included.

    Raises:
        StudyError: A release is not on the ledger of its run.
        LedgerError: A ledger is damaged, or holds less than was charged.
    """
    block = spec.start
    if block is None:
        return {}
    found = {}
    for key, _, record in _on_record(spec, block, files):
        spent = trial_spent(files.ledger, key[0], at_least=record["charged"])
        found[key] = spent.slice(0, record["charged"]).part("private").merged()
    return found


def _on_record(
    spec: SweepSpec, block: StartSpec, files: StudyFiles
) -> Iterator[tuple[ReleaseKey, int, Mapping[str, Any]]]:
    """Yield every release with its number and what the ledger of its run says of it."""
    for run in range(block.runs):
        made = releases_of(read_log(trial_file(files.ledger, run)))
        for index, epsilon in enumerate(block.epsilons):
            if index not in made:
                raise StudyError(
                    f"the start of study {spec.name!r} has not released a model at {epsilon:g}",
                    because=f"the ledger of trial {run} has no such record",
                    fix="restore it, or start a new study under another name",
                )
            yield (run, epsilon), index, made[index]


def unfinished_starts(view: StudyView, tasks: Sequence[TrialTask]) -> list[TrialTask]:
    """Return the runs that have not ended.

    Raises:
        SweepError: One has ended without releasing what it was to release.
    """
    left = []
    for task in tasks:
        trial = view.trials.get(task.trial)
        if trial is None or trial.state is TrialState.RUNNING:
            left.append(task)
        elif trial.state is not TrialState.FINISHED:
            raise SweepError(
                f"run {task.trial} of the start has {trial.state.value}: {trial.reason}",
                fix="correct the cause, and start a new study under another name; what this one "
                "has spent stays spent",
            )
    return left


def release_of(
    method: type[Method], hparams: Mapping[str, Any], starts: Mapping[ReleaseKey, Plan]
) -> Plan:
    """Return the events that a configuration inherits; none if it starts from no release.

    Raises:
        BadInputError: There is no such release.
    """
    key = method.starts_from(hparams)
    if key is None:
        return Plan(())
    if key not in starts:
        run, epsilon = key
        raise BadInputError(f"no release of run {run} at epsilon {epsilon:g}")
    return starts[key]

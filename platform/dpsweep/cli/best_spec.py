"""A trial of a study as a spec of its own: one configuration, run once more, at its own cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.cli.tables import wrapped
from dpsweep.foundation.errors import BadInputError, StudyError
from dpsweep.foundation.validate import of_kind, whole
from dpsweep.planning.costs.composition import filter_of
from dpsweep.planning.preflight import NUM_SAMPLED
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import Plan
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.coverage import with_caveats
from dpsweep.results.study import SweepResult
from dpsweep.results.trial import TrialResult, trial_number
from dpsweep.spec.document.writing import dump_yaml
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState, TrialTask
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import info_of_records
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.networks.pretrained.weights import PRETRAIN

SUFFIX = "-best"
_STEP = 1.01  # between budgets that are tried
_REPEAT = "train.repeat"


def spec_of_trial(
    result: SweepResult, trial: int, *, runs: int = 1, suffix: str = SUFFIX
) -> SweepSpec:
    """Return a spec whose one configuration is that of a trial, with the same training plan.

    It stays in the study's accounting mode where that makes sense of one configuration: ``public``
    scores it on public records and then runs it once on the private ones, ``unaccounted`` stays.
    ``composed`` keeps no more budget than this one run needs, and ``select`` becomes ``composed``:
    there is nothing to select from. Of a search on a part of the records, a trial's configuration
    is run on as many private records as the trial had, though not on the same ones.

    Guarantees:
        The claim of the new study is about its own run alone. That the configuration was found on
        the same records is the cost of the study it is from, and adds to it. A dataset ledger that
        the study is charged to is charged again.

    Args:
        result: The study.
        trial: Number of one of its trials.
        runs: How often it is run, each time with noise, batches and first weights of its own.
        suffix: What the name has more than the study's.
    Raises:
        BadInputError: It is no ``SweepResult``, or has no such trial; or its method, or the
            accounting mode, has no repetitions, or ``runs`` is no whole number from 1.
    """
    of_kind("a spec is made of a study", result, SweepResult, "spec_of_trial(load_sweep(name), n)")
    trial, runs, spec = trial_number(trial), whole("runs", runs, low=1), result.spec
    of_kind("the end of a name is a text", suffix, str, fix='suffix="-again"')
    try:
        task = result.task(trial)
    except StudyError:
        result.trial(trial)  # or it has none of that number
        raise
    tree = spec.to_dict()
    tree["name"] = spec.name[: 64 - len(suffix)] + suffix
    tree["scheduler"] = {"type": "fifo"}
    tree["search"].pop("probe", None)
    tree["search"] |= {
        "strategy": "sampler",
        "sampler": "random",
        "num_trials": 1,
        "max_time": None,
        "objectives": [],
        "points_to_evaluate": [],
        "space": _space(result, task),
    }
    if tree["search"].pop("on", None) is not None:  # its plan is for as many records as it had
        info = describe_dataset(spec.data)
        own = info_of_records(info, spec.searched_share, task.records)
        tree["data"]["max_private"] = own.num_private
    if runs > 1:
        _repeat(tree["search"], spec, task, runs)
    if spec.episodes is not None:  # it runs on each of them, and its mean counts
        tree["search"]["sampler"] = "grid"
        del tree["search"]["num_trials"]
    privacy = tree["privacy"]
    if trial < spec.num_starts and spec.start is not None:
        privacy["trial_epsilon"] = spec.start.epsilons[-1]
    if spec.final_trial is not None or spec.subset_rate is not None or _costs_less(spec, task):
        privacy["trial_epsilon"] = math.ceil(task.planned_epsilon * 1e4) / 1e4
    if task.records == "rest":
        privacy["trial_epsilon"] = privacy["study_epsilon"]
    if not _needs_start(task):
        tree.pop("start", None)
    if PRETRAIN not in _checkpoints(tree):
        tree.pop("pretrain", None)
    if spec.privacy.mode.is_filtered or spec.privacy.mode.is_sealed:
        privacy.pop("selection", None)
        needed = privacy["trial_epsilon"]
        num_starts = spec.num_starts if "start" in tree else 0
        if num_starts + runs > 1 or not _fits(result, task.full_plan, needed):
            needed = max(needed, _budget(result, num_starts, [task.full_plan] * runs))
        if spec.privacy.mode.is_sealed and spec.privacy.accountant == "pld":
            privacy["composition"] = "declared"
        privacy |= {"accounting": "composed", "study_epsilon": math.ceil(needed * 1e4) / 1e4}
    return SweepSpec(**tree)


#: By these a configuration says how much noise it has, or what it costs.
_OWN_NOISE = ("noise.noise_multiplier", "noise.target_epsilon")


def _costs_less(spec: SweepSpec, task: TrialTask) -> bool:
    """Say whether a trial's plan, which is its own choice, costs less than the study allows it.

    Not of accountant pld within a filter, which counts Renyi costs.
    """
    is_fixed = any(task.hparams.get(name) is not None for name in _OWN_NOISE)
    is_filtered = spec.privacy.mode.is_filtered or spec.privacy.mode.is_sealed
    is_alike = spec.privacy.accountant == "rdp" or not is_filtered
    is_less = task.planned_epsilon < math.floor(spec.privacy.trial_epsilon * 1e4 - 1) / 1e4
    return is_fixed and is_alike and is_less and spec.start is None


def _space(result: SweepResult, task: TrialTask) -> dict[str, Any]:
    """Return the values of a trial that its study names, or that are no defaults."""
    defaults = {knob.name: knob.default for knob in TRAINABLES[task.method].hyperparameters}
    hparams = {"method": task.method, **task.hparams}
    named = {
        parameter.name
        for parameter in result.spec.search.parameters
        if all(hparams.get(name) in allowed for name, allowed in parameter.when.items())
    }
    values = {
        name: value
        for name, value in task.hparams.items()
        if name != EPISODE and (name in named or value != defaults.get(name))
    }
    return {"method": task.method, **values}


def _needs_start(task: TrialTask) -> bool:
    """Say whether a trial's method takes a release, or its network, from the section start."""
    return any(knob.name == "start.epsilon" for knob in TRAINABLES[task.method].hyperparameters)


def _checkpoints(tree: Mapping[str, Any]) -> list[Any]:
    """Return the checkpoints that a spec's trials and its start begin with."""
    start = tree.get("start") or {}
    sections = (tree["search"]["space"], start.get("hyperparameters") or {})
    return [section.get("model.checkpoint") for section in sections]


def _repeat(search: dict[str, Any], spec: SweepSpec, task: TrialTask, runs: int) -> None:
    """Have a search run its one configuration several times."""
    if spec.privacy.mode.is_public_search:
        raise BadInputError(
            f"a study of accounting public has one private run, and {runs} are asked for",
            fix="leave runs (`--seeds`) out, and choose another accounting in the spec that comes "
            "(`--dry-run` prints it)",
        )
    if spec.episodes is not None or all(
        knob.name != _REPEAT for knob in TRAINABLES[task.method].hyperparameters
    ):
        whose = "episodes" if spec.episodes is not None else f"method {task.method}"
        raise BadInputError(
            f"{whose} has no {_REPEAT} to repeat a trial by", fix="leave runs (`--seeds`) out"
        )
    search |= {"sampler": "grid", "num_trials": runs}
    search["space"] = {**search["space"], _REPEAT: {"choice": list(range(runs))}}


def _fits(result: SweepResult, plan: Plan, epsilon: float) -> bool:
    """Say whether one run fits into a study_epsilon, as a sweep chooses its filter."""
    chosen = filter_of([plan] * NUM_SAMPLED, epsilon, result.spec.privacy.delta)
    return chosen.share(chosen.cost(plan)) <= 1


def _budget(result: SweepResult, num_starts: int, runs: Sequence[Plan]) -> float:
    """Return a study_epsilon that runs of the start and of a trial fit into, and little more."""
    delta = result.spec.privacy.delta
    starts = [result.task(number).full_plan for number in range(num_starts)]
    everything = [*starts, *runs]
    epsilon = epsilon_of(sum(everything, Plan()), delta=delta, accountant="rdp")
    plans = [*[runs[0]] * NUM_SAMPLED, *starts]  # as a sweep chooses its filter
    while True:
        epsilon *= _STEP
        chosen = filter_of(plans, epsilon, delta)
        if sum(chosen.share(chosen.cost(plan)) for plan in everything) < 1 / _STEP:
            return epsilon


def spec_text(
    result: SweepResult,
    trial: TrialResult,
    spec: SweepSpec | None = None,
    *,
    command: str = "best --as-spec",
) -> str:
    """Return ``spec_of_trial`` as a YAML file that says where it is from and what it will cost."""
    spec = spec or spec_of_trial(result, trial.trial_id)
    task = result.task(trial.trial_id)
    score = "no score" if trial.value is None else f"{trial.metric}={trial.value:.4f}"
    lines = [
        f"The configuration of trial {trial.trial_id} of study {result.name!r}, "
        f"{score} there; written by `dpsweep {command}`.",
        cost_text(result, spec, task),
        _expected(result, trial),
    ]
    comment = [f"# {line}" for text in lines for line in wrapped(text, 78)]
    return "\n".join(comment) + "\n\n" + dump_yaml(_without_nulls(spec))


def _expected(result: SweepResult, trial: TrialResult) -> str:
    """Return what score to expect of a trial that is run again."""
    anew = "noise and batches are drawn anew, and so are first weights."
    if trial.state is not TrialState.FINISHED:
        return (
            f"Expect another score than that one: it is of step {trial.steps_run} of "
            f"{trial.num_steps}, where the trial ended; {anew}"
        )
    finished = [each for each in result.results if each.state is TrialState.FINISHED]
    sign = 1.0 if result.is_maximized else -1.0
    if any(sign * (each.value or 0.0) > sign * (trial.value or 0.0) for each in finished):
        return f"Expect another score than that one: {anew}"
    return (
        "Expect another score than that one, most often a lower one: it was chosen for being the "
        f"best (the winner's curse), {anew}"
    )


def _without_nulls(spec: SweepSpec) -> dict[str, Any]:
    """Return a spec's keys but for nulls that say nothing."""
    tree = spec.to_dict()
    sections = {name: values for name, values in tree.items() if isinstance(values, dict)}
    for section, values in sections.items():
        for key in [key for key, value in values.items() if value is None]:
            shorter = {k: value for k, value in values.items() if k != key}
            if SweepSpec(**{**tree, section: shorter}) == spec:
                tree[section] = values = shorter
    return tree


def _is_free(spec: SweepSpec, task: TrialTask, events: Plan) -> bool:
    """Say whether a study of a trial alone reads no private record, and has none paid for.

    A dataset's ledger is charged what a study may spend. A trial of a public search has a final run
    after it.
    """
    is_reserved = spec.privacy.dataset_ledger is not None or spec.num_starts > 0
    is_alone = task.records == "private" and spec.data.validation.visibility != "exact"
    return is_alone and not is_reserved and not events.without("public")


def cost_text(result: SweepResult, spec: SweepSpec, task: TrialTask) -> str:
    """Say what running a trial's configuration again will cost, on top of its study."""
    if not task.is_private:
        return "It makes no privacy claim: its method has no finite epsilon."
    events = task.inherited + task.full_plan
    if _is_free(spec, task, events):
        clause = "Running it reads no private record: all of its plan is on public ones"
        return f"{with_caveats(spec, clause)}."
    privacy = spec.privacy
    epsilon, extent = privacy.trial_epsilon, "the run; the study it was chosen in is NOT included"
    if privacy.mode.is_filtered and privacy.study_epsilon is not None:
        epsilon, extent = privacy.study_epsilon, "all that it releases"
    elif spec.episodes is not None:
        extent = "each run; the study it was chosen in is NOT included"
    terms = spec.privacy_terms(events.sampling).line()
    added = f"on top of what study {result.name!r} has cost"
    if privacy.dataset_ledger is not None:
        added += ", and its dataset's ledger is charged once more"
    return (
        f"Running it SPENDS PRIVACY AGAIN: epsilon <= {shown_epsilon(epsilon)} for "
        f"{with_caveats(spec, extent)} ({terms}), {added}."
    )

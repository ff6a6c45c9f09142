"""The verbs that show one trial whole: the best within a budget, or any by its number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dpsweep.cli.base import Explain, Json, Name, Output, Root, TrackingUri, say
from dpsweep.cli.best_spec import spec_text
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.trials import caption_of, epsilon_cells, in_short
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.words import counted
from dpsweep.results.choosing import By, Limits
from dpsweep.results.coverage import so_far
from dpsweep.results.records import declared_by
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.results.trial import TrialResult
from dpsweep.spec.space.hyperparameters import without_effect

#: What an epsilon at a step is; True: of a search on a secret part, which is charged at once.
_MOMENTS = {False: "what the trial had spent by then", True: "the study's, at every step"}
MaxEpsilon = Annotated[
    float | None,
    typer.Option("--max-epsilon", help="Largest epsilon of the trial, not of the study."),
]
MaxDelta = Annotated[
    float | None,
    typer.Option("--max-delta", help="Largest delta; a study has one for all its epsilons."),
]
OfMethod = Annotated[
    str | None, typer.Option("--method", help="Only trials of this training method.")
]
CompareBy = Annotated[
    By,
    typer.Option(
        "--by",
        help="Compare trials by their own scores, or by the mean over the runs of their "
        "configuration (train.repeat, episodes): a lucky seed then decides nothing.",
    ),
]


def limits_of(max_epsilon: float | None, max_delta: float | None, method: str | None) -> Limits:
    """Return the limits of a choice.

    Raises:
        BadInputError: One is negative.
    """
    for option, cap in (("--max-epsilon", max_epsilon), ("--max-delta", max_delta)):
        if cap is not None and not cap >= 0:
            raise BadInputError(f"{option} must be >= 0, got {cap:g}")
    return Limits(max_epsilon, max_delta, method)


def best(
    name: Name,
    max_epsilon: MaxEpsilon = None,
    max_delta: MaxDelta = None,
    method: OfMethod = None,
    by: CompareBy = "trial",
    as_spec: Annotated[
        bool,
        typer.Option("--as-spec", help="Print a spec that runs this configuration once more."),
    ] = False,
    root: Root = None,
    tracking_uri: TrackingUri = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show the best configuration within a budget; exit 3 if there is none."""
    limits = limits_of(max_epsilon, max_delta, method)
    if as_spec and output not in (Format.TABLE, Format.YAML):
        raise BadInputError(f"--as-spec prints YAML, not {output.value}", fix="leave -f out")
    result = load_sweep(name, root=root, tracking_uri=tracking_uri)
    choice = result.choose(limits, by=by)
    trial = choice.best
    for line in choice.notes():
        say(f"note: {line}")
    if as_spec:
        print(spec_text(result, trial), end="")
        return
    _warn(result, trial)
    if output is not Format.TABLE:
        print_records(choice.to_dict(), output)
        say(in_short(result, trial))
        return
    means = (
        {f"mean over {counted(len(choice.runs), 'run')}": choice.score} if choice.is_mean else {}
    )
    _print_trial(result, trial, means, explain=explain)


def show(
    name: Name,
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="Number of the trial.")],
    root: Root = None,
    tracking_uri: TrackingUri = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show one trial: scores, epsilon, configuration, its reports."""
    result = load_sweep(name, root=root, tracking_uri=tracking_uri)
    if result.unreleased:
        say(result.unreleased)
    shown = result.trial(trial)
    _warn(result, shown)
    if output is not Format.TABLE:
        record = {"state": result.state_of(shown), "reason": shown.reason, **shown.to_dict()}
        curve = [
            {**point, **_terms_of(result, shown, point["epsilon"], output)} for point in shown.curve
        ]
        print_records({**record, "curve": curve}, output)
        say(in_short(result, shown))
        return
    state = {"state": result.state_of(shown), **({"why": shown.reason} if shown.reason else {})}
    _print_trial(result, shown, state, explain=explain)
    if not shown.curve:
        return
    print("\nreports, of the model at each step:")
    print_records(
        [
            {
                "step": point["step"],
                **_terms_of(result, shown, point["epsilon"], output),
                **point["metrics"],
            }
            for point in shown.curve
        ],
        output,
        caption=f"epsilon: {_MOMENTS[result.spec.subset_rate is not None]}, at the terms above.",
    )


def _terms_of(
    result: SweepResult, trial: TrialResult, epsilon: float | None, output: Format
) -> dict[str, Any]:
    """Return the epsilon of a report with what stands beside it."""
    spent = float("inf") if epsilon is None else epsilon
    return epsilon_cells(result, spent, trial.statement.sampling, so_far(result.spec), output)


def _warn(result: SweepResult, trial: TrialResult) -> None:
    """Say what is wrong with a trial's model, scores or configuration; mostly nothing."""
    damage = result.model_damage(trial)
    if damage and trial.value is not None:
        say(f"note: {damage}; its score and its configuration are in the journal")
    if result.view.trials[trial.trial_id].is_tested_elsewhere:
        say("\n".join(result.score_notes()))
    if trial.trial_id in result.incomplete:
        say(
            f"note: trial.json of trial {trial.trial_id} cannot be read in the tracking store, so "
            "that its configuration may be incomplete"
        )


def _print_trial(
    result: SweepResult, trial: TrialResult, more: Mapping[str, Any], *, explain: bool
) -> None:
    """Print one trial: what people ask first, then its configuration, then all terms."""
    print_records({"trial": trial.trial_id, **more, **_cells(trial)}, Format.TABLE)
    idle = without_effect(declared_by(trial.config["method"]) or (), trial.config)
    counting = [key for key in trial.config if key not in idle]
    names = sorted(counting, key=lambda key: key not in result.varied)
    print("\nconfiguration, what was searched first:")
    caption = caption_of(result, explain, {trial.trial_id})
    if idle:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in idle.items())
        caption = f"Without effect here, and left out: {reasons}.\n{caption}"
    print_records({key: trial.config[key] for key in names}, Format.TABLE, caption=caption)


def _cells(trial: TrialResult) -> dict[str, Any]:
    """Return what people ask of a trial first: scores, epsilons, where its model is."""
    cells: dict[str, Any] = {trial.metric: None}
    if trial.value is not None:
        cells[trial.metric] = f"{trial.value:.4f} at step {trial.step} of {trial.num_steps}"
    for metric, value in trial.metrics.items():
        if metric.startswith("test/"):
            cells[metric] = f"{value:.4f} of the same model"
    cells["epsilon"] = trial.epsilon
    if trial.study_statement is not None:
        cells["epsilon of the study"] = trial.study_statement.epsilon
    return {**cells, "model": trial.model_uri, "run": trial.run_id}

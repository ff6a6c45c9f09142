"""The verb ``best``: the best configuration of a study, within a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli.base import Explain, Name, Output, Root, say
from dpsweep.cli.best_spec import spec_text
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.trials import caption_of, in_short
from dpsweep.foundation.errors import (
    BadInputError,
)
from dpsweep.results.effects import without_effect
from dpsweep.results.study import load_sweep
from dpsweep.trainables import TRAINABLES

if TYPE_CHECKING:
    from dpsweep.results.study import SweepResult
    from dpsweep.results.trial import TrialResult


def best(
    name: Name,
    max_epsilon: Annotated[
        float | None,
        typer.Option("--max-epsilon", help="Largest epsilon of the trial, not of the study."),
    ] = None,
    as_spec: Annotated[
        bool,
        typer.Option("--as-spec", help="Print a spec that runs this configuration once more."),
    ] = False,
    root: Root = None,
    output: Output = Format.TABLE,
    explain: Explain = False,
) -> None:
    """Show the best configuration within a budget; exit 3 if there is none."""
    if max_epsilon is not None and not max_epsilon >= 0:
        raise BadInputError(f"--max-epsilon must be >= 0, got {max_epsilon:g}")
    if as_spec and output not in (Format.TABLE, Format.YAML):
        raise BadInputError(f"--as-spec prints YAML, not {output.value}", fix="leave -f out")
    result = load_sweep(name, root=root)
    trial = result.best(max_epsilon=max_epsilon)
    if as_spec:
        print(spec_text(result, trial), end="")
        return
    damage = result.model_damage(trial)
    if damage:
        say(f"note: {damage}; its score and its configuration are in the journal")
    if result.view.trials[trial.trial_id].is_tested_elsewhere:
        say("\n".join(result.score_notes()))
    if output is not Format.TABLE:
        print_records(trial.to_dict(), output)
        say(in_short(trial))
        return
    print_records(_best_cells(result, trial), output)
    declared = TRAINABLES[trial.config["method"]].hyperparameters
    idle = without_effect(trial.config, declared)
    counting = [key for key in trial.config if key not in idle]
    names = sorted(counting, key=lambda key: key not in result.varied)
    print("\nconfiguration, what was searched first:")
    caption = caption_of(result, explain, {trial.trial_id})
    if idle:
        reasons = ", ".join(f"{name} ({reason})" for name, reason in idle.items())
        caption = f"Without effect here, and left out: {reasons}.\n{caption}"
    print_records({key: trial.config[key] for key in names}, output, caption=caption)


def _best_cells(result: SweepResult, found: TrialResult) -> dict[str, Any]:
    """Return what people ask of the best trial first: scores, epsilons, where its model is."""
    cells: dict[str, Any] = {
        "trial": found.trial_id,
        found.metric: f"{found.value:.4f} at step {found.step} of {found.num_steps}",
    }
    for metric, value in found.metrics.items():
        if metric.startswith("test/"):
            cells[metric] = f"{value:.4f} of the same model"
    cells["epsilon"] = found.epsilon
    if found.study_statement is not None:
        cells["epsilon of the study"] = found.study_statement.epsilon
    return {**cells, "model": found.model_uri, "run": found.run_id}

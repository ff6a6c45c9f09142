"""Trials as rows of a table, each epsilon with what it covers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.cli.base import say
from dpsweep.cli.output import Format, print_records
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.coverage import records_of_trial, with_caveats
from dpsweep.results.tables.searched import best_id, searched_values
from dpsweep.study.journal import on_test_records

if TYPE_CHECKING:
    from dpsweep.results.study import SweepResult
    from dpsweep.results.trial import TrialResult


_SCORES_ARE_OF = "Scores are of the model at `step`, which a trial delivers; `steps`: run, planned."


def in_short(result: SweepResult, trial: TrialResult) -> str:
    """Return a trial's epsilon with its terms, the first words of what it covers, and caveats."""
    statement, released = trial.statement, trial.statement.released
    covers = released.partition(":")[0].partition(";")[0].partition(",")[0]
    part = records_of_trial(result.spec, result.view.trials[trial.trial_id].records)
    covers += f" {part}" if part in released and part not in covers else ""
    terms = with_caveats(result.spec, f"{covers}; {statement.line()}")
    return f"epsilon={shown_epsilon(statement.epsilon)} ({terms})"


def print_trials(
    result: SweepResult,
    output: Format,
    trials: Sequence[TrialResult] | None = None,
    *,
    explain: bool = False,
) -> None:
    """Print trials of a study, all of them by default, with what their epsilons cover.

    Of none there is no table to explain; a claim that was given up is said all the same.
    """
    rows = []
    has_kinds = result.spec.privacy.mode.is_public_search or result.spec.search.on is not None
    is_probed = result.spec.final_trial is not None
    best = best_id(result) if output is Format.TABLE else None
    test = on_test_records(result.spec.search.metric)
    is_tested = result.spec.data.test.visibility == "public"
    has_memory = explain and any(trial.memory_mb is not None for trial in result.results)
    trials = result.results if trials is None else trials
    for trial, searched in zip(trials, searched_values(result, trials)):
        statement = trial.statement
        rows.append(
            {
                **({"": "*" if trial.trial_id == best else ""} if best is not None else {}),
                "trial": trial.trial_id,
                "state": result.state_of(trial),
                **({"records": result.view.trials[trial.trial_id].records} if has_kinds else {}),
                **({"run": result.spec.run_of(trial.trial_id)} if is_probed else {}),
                "method": trial.config.get("method"),
                trial.metric: trial.value,
                **({test: trial.metrics.get(test)} if is_tested else {}),
                **epsilon_cells(
                    result,
                    trial.epsilon,
                    statement.sampling,
                    statement.released,
                    output,
                ),
                "step": trial.step,
                "steps": f"{trial.steps_run}/{trial.num_steps}",
                **({"memory MiB": trial.memory_mb} if has_memory else {}),
                # A record has the whole configuration, what was searched or not.
                **(searched if output is Format.TABLE else {n: trial.config[n] for n in searched}),
            }
        )
    shown = {row["trial"] for row in rows}
    caption = f"{caption_of(result, explain, shown)}\n{_SCORES_ARE_OF}"
    if best is not None:
        caption = f"* the best. {caption}"
    if rows or output is not Format.TABLE:
        print_records(rows, output, caption=caption, collapsible={"method", *result.varied})
    elif result.claims.downgraded:
        say(caption_of(result, explain, shown))
    for line in result.score_notes():
        say(line)


def caption_of(
    result: SweepResult,
    explain: bool,
    shown: Collection[int] | None = None,
    *,
    is_so_far: bool = False,
) -> str:
    """Return what stands below a table of epsilons, at length where that is asked for."""
    caption = result.claims.caption if explain else result.claims.brief
    return caption(shown, is_so_far=is_so_far)


def epsilon_cells(
    result: SweepResult, epsilon: float, sampling: str, released: str, output: Format
) -> dict[str, Any]:
    """Return an epsilon for one row: a table has a caption, a record carries its terms itself."""
    if output is Format.TABLE:
        return {"epsilon": shown_epsilon(epsilon)}
    terms = result.claims.epsilon_terms()
    return {"epsilon": epsilon, "sampling": sampling, **terms, "released": released}

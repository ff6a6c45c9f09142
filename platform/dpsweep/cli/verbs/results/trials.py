"""The verbs that list the trials of a study, its events and the decisions about it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import typer

from dpsweep.cli.base import Explain, Json, Name, Output, Root, TrackingUri, say
from dpsweep.cli.memory_words import memory_taken
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.trials import caption_of, epsilon_cells, print_trials
from dpsweep.results.advice import advice, undelivered
from dpsweep.results.coverage import so_far
from dpsweep.results.study import load_sweep


def status(
    name: Name,
    sort: Annotated[
        Literal["trial", "score", "epsilon"],
        typer.Option("--sort", help="Order of the rows: by number, best first, cheapest first."),
    ] = "trial",
    root: Root = None,
    tracking_uri: TrackingUri = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show a study's trials, running or not."""
    result = load_sweep(name, root=root, tracking_uri=tracking_uri)
    trials, lines = result.results, advice(result)  # nothing is said before all was read
    say(result.status_line())
    if result.unreleased:
        say(result.unreleased)
        if output is Format.TABLE:
            return
    if sort == "epsilon":
        trials.sort(key=lambda trial: (trial.epsilon, trial.trial_id))
    elif sort == "score":
        sign = -1.0 if result.is_maximized else 1.0
        scored = [trial for trial in trials if trial.value is not None]
        unscored = [trial for trial in trials if trial.value is None]
        trials = sorted(scored, key=lambda trial: sign * (trial.value or 0.0)) + unscored
    print_trials(result, output, trials, explain=explain)
    if explain:
        lines += memory_taken(result.spec.resources, trials)
    for line in [*lines, *undelivered(result).splitlines()]:
        say(line)


def logs(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Only this trial.")] = None,
    root: Root = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show what happened in a study, in order."""
    result = load_sweep(name, root=root)
    if trial is not None:
        result.refuse_unknown(trial)
    rows = []
    history = result.history(trial)
    same_day = len({row["time"][:10] for row in history}) == 1
    for row in history:
        if row["epsilon"] is not None:
            sampling = result.view.trials[row["trial"]].sampling
            row.update(epsilon_cells(result, row["epsilon"], sampling, so_far(result.spec), output))
        if output is Format.TABLE:
            moment = row["time"][:23].replace("T", " ")
            row = {"time (UTC)": moment[11:] if same_day else moment, **row}
            del row["time"]
        rows.append(row)
    print_records(rows, output, caption=caption_of(result, explain, is_so_far=True))


def pareto(
    name: Name,
    root: Root = None,
    tracking_uri: TrackingUri = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show the trials that no other one beats in score at the same or less epsilon."""
    result = load_sweep(name, root=root, tracking_uri=tracking_uri)
    front = result.pareto()
    if not front:
        result.best()  # it says why there is none
    print_trials(result, output, front, explain=explain)


def decisions(
    name: Name,
    root: Root = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Explain = False,
) -> None:
    """Show why trials were stopped, paused or continued, and what probes led to."""
    result = load_sweep(name, root=root)
    rows = []
    if not result.decisions():
        until_now = " so far" if result.state == "running" else ""
        say(f"no trial was judged{until_now}; the scheduler is {result.spec.scheduler.type}")
        if output is Format.TABLE:
            return
    for row in result.decisions():
        epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
        sampling = result.view.trials[row["trial"]].sampling
        cells = epsilon_cells(result, epsilon, sampling, so_far(result.spec), output)
        rows.append({**row, **cells})
        is_in_words = result.spec.final_trial is not None  # probes have no rungs, only a reason
        if output is Format.TABLE and not explain and not is_in_words:
            del rows[-1]["reason"]  # the columns before it, in words
    print_records(rows, output, caption=caption_of(result, explain, is_so_far=True))

"""The verb ``plan``: what a sweep will do and cost, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli.base import Json, Output, Sets, Spec, load_checked, say, stage
from dpsweep.cli.memory_words import memory_warnings
from dpsweep.cli.output import Format, print_records, shown_multiplier
from dpsweep.cli.plan_words import declared_words, duration, final_words, size
from dpsweep.cli.planned import method_row, planned
from dpsweep.cli.tables import TALK, width, wrapped
from dpsweep.foundation.words import counted, exact
from dpsweep.privacy.modes import MODES, UNACCOUNTED
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import shown_delta

if TYPE_CHECKING:
    from dpsweep.planning.preflight import Preflight
    from dpsweep.planning.sample import Sample
    from dpsweep.planning.summary import PlanSummary

_EPSILONS = ("epsilon", "composed_epsilon", "study_epsilon", "sum_rule_epsilon")


def plan(
    spec: Spec,
    sets: Sets = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every figure, those of the accounting too.")
    ] = False,
) -> None:
    """Show what a sweep will do and cost, before anything starts.

    Plans are those of configurations drawn from the space. Time and disk are measured with a few
    steps on made-up records; no private record is opened but a labels.csv, and of texts the
    validation and test files of their own.
    """
    checked = load_checked(spec, sets)
    plans = planned(checked, lambda text: say(stage(text)))
    summary, sample = plans.summary, plans.sample
    if plans.refused:
        say(f"note: {plans.refused}")
    if output is not Format.TABLE:
        print_records(plans.to_dict(), output)
        _refuse_planless(checked, sample)
        return
    for note in summary.notes:
        say(f"note: {note}")
    for line in memory_warnings(plans.estimate.memory):
        say(line)
    for sentence in plans.sentences:
        print("\n".join(wrapped(sentence, width(TALK))))
    print()
    cells = {"pretrain": plans.pretrain} if plans.pretrain else {}
    cells |= _plan_cells(summary, plans.estimate.to_dict())
    if not explain:
        shown = {
            "pretrain",
            "start",
            "final_run",
            "rungs",
            "infeasible_because",
            *summary.plan_facts,
        }
        if summary.declared is not None and summary.declared.barrier is not None:
            shown.add("declared")
        cells = {key: value for key, value in cells.items() if key in shown}
    if cells:
        print_records(cells, output)
        print()
    print_records(_shown_rows(checked, sample), output)
    print()
    print_records(_mode_rows(summary), output, caption=_caption(summary))
    _refuse_planless(checked, sample)


def _refuse_planless(checked: Preflight, sample: Sample) -> None:
    """End as ``validate`` and ``run`` do where no configuration has a plan.

    Raises:
        InfeasibleBudgetError: None of those that were tried has one.
    """
    if not sample.tasks:
        checked.check_some_plan()


def _shown_rows(checked: Preflight, sample: Sample) -> list[dict[str, Any]]:
    """Return a row for each method; of probes one, and one for the final run."""
    if checked.spec.final_trial is None:
        return [_shown_row(sample, name) for name in sorted(checked.methods)]
    groups = {"probe": sample.tasks[:-1], "final": sample.tasks[-1:]}
    return [
        {"run": run, **_shown_row(replace(sample, tasks=tasks), tasks[0].method)}
        for run, tasks in groups.items()
    ]


def _shown_row(sample: Sample, name: str) -> dict[str, Any]:
    row = method_row(sample, name)

    def told(key: str, show: Callable[[float], str]) -> str:
        low, high = row[key] or (None, None)
        if low is None or high is None:
            return ""
        return show(low) if show(low) == show(high) else f"{show(low)} to {show(high)}"

    return {
        "method": name,
        "sampled": row["configurations_with_a_plan"],
        "steps": told("steps_per_trial", "{:.0f}".format),
        "noise multiplier": told("noise_multiplier", shown_multiplier),
        "epsilon of a trial": told("epsilon_per_trial", shown_epsilon),
    }


def _plan_cells(summary: PlanSummary, forecast: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first table: nested records become one line each, epsilons are rounded up."""
    record = summary.to_dict()
    modes = record.pop("study_epsilon_by_mode")
    del record["notes"]
    record["rungs"] = "\n".join(map(str, summary.rungs))
    if summary.start is not None:
        record["start"] = str(summary.start)
    if summary.final is not None:
        record["final_run"] = final_words(summary.final)
    cells: dict[str, Any] = {}
    for key, value in _with_facts(record):
        if key.startswith(_EPSILONS) and value is not None:
            shown = [shown_epsilon(v) for v in value] if isinstance(value, list) else [value]
            value = " to ".join(v if isinstance(v, str) else shown_epsilon(v) for v in shown)
        elif isinstance(value, list) and len(value) == 2 and not isinstance(value[0], str):
            value = " to ".join(f"{number:.6g}" for number in value)
        cells[key] = value
    assert set(modes) >= {summary.terms.accounting}
    cells["filter"], cells["selection"] = _filter_text(summary), _selection_text(summary)
    cells["declared"] = declared_words(summary)
    trials = f"for {counted(float(summary.num_trials), 'trial')}"
    cells["time"], cells["disk"] = _time_text(forecast, trials), _disk_text(forecast, trials)
    return {key: value for key, value in cells.items() if value not in (None, [], "")}


def _with_facts(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a record's items; what methods say of their plans comes one by one."""
    for key, value in record.items():
        yield from value.items() if key == "plan_facts" else [(key, value)]


def _filter_text(summary: PlanSummary) -> str:
    figures = summary.composed
    if figures is None or summary.composition == "declared":
        return ""
    how = "Gaussian DP" if figures.order is None else f"Renyi order {figures.order:g}"
    low, middle, high = (f"{n}" if math.isfinite(n) else "any number" for n in figures.fits)
    start = " after the start" if summary.start else ""
    cap = exact(figures.target_epsilon)
    return (
        f"accounting composed: {how}, budget {figures.budget:.4f}; "
        f"study_epsilon={cap} admits{start}, as full-length trials, {middle} of the median "
        f"cost ({low} of the smallest, {high} of the largest)"
    )


def _selection_text(summary: PlanSummary) -> str:
    figures = summary.selection
    if figures is None:
        return ""
    bounds = "Renyi curves" if figures.accountant == "rdp" else "privacy profiles"
    text = (
        f"accounting select: {counted(figures.mean, 'trial')} expected (shape {figures.shape}), a "
        f"single one with probability {figures.probability_of_one:.3g}; a trial "
        f"becomes epsilon={shown_epsilon(figures.epsilon)} ({figures.accountant}; alone it is at "
        f"most {shown_epsilon(figures.base_epsilon)} by the largest of the sampled {bounds})"
    )
    if figures.cap is None:
        return text
    verdict = "fits" if figures.fits else "does not fit"
    text += f", which {verdict} study_epsilon={exact(figures.cap)}"
    largest = figures.trial_epsilon_that_fits
    if largest is not None:
        also = (
            "trial_epsilon may be as large as"
            if figures.fits
            else "to fit it, set trial_epsilon to"
        )
        text += f"; {also} {largest:g}"
    return text


def _time_text(forecast: Mapping[str, Any], trials: str) -> str:
    if forecast["seconds_per_trial"] is None:
        return f"not measured: {forecast['because']}"
    low, high = forecast["seconds_per_trial"]
    text = (
        f"roughly {duration(low)} to {duration(high)} a trial, "
        f"{duration(forecast['slot_seconds'])} {trials}"
    )
    if forecast["wall_seconds"] is not None:
        wall = duration(forecast["wall_seconds"])
        text += f", {wall} on {counted(forecast['slots'], 'slot')} of this machine"
    return f"{text} ({forecast['note']})"


def _disk_text(forecast: Mapping[str, Any], trials: str) -> str:
    if forecast["disk_bytes"] is None:
        return ""
    return (
        f"roughly {size(forecast['disk_bytes'])} {trials}: three checkpoints a trial of up to "
        f"{size(forecast['checkpoint_bytes'])}, ledgers, journal, pictures and the tracking store"
    )


def _mode_rows(summary: PlanSummary) -> list[dict[str, Any]]:
    rows = []
    for mode, cost in summary.modes.items():
        row = {"": "*" if mode == summary.terms.accounting else "", "mode": mode}
        if cost is None:
            row["epsilon"] = "none"
            row["released"] = "no claim about the search is made"
            if MODES[mode].is_accounted:
                row["released"] = "no price: some trial has no plan or no finite epsilon"
                if summary.visibility == "exact":
                    row["released"] = "not with exact scores of private records: noisy or public"
                elif summary.episodes is not None:
                    row["released"] = "not for episodes: drawing them reads labels"
                elif summary.probing is not None:
                    row["released"] = "not with probes, which belong to composed"
                elif summary.final is not None:
                    row["released"] = "not for a search on a part of the records"
                elif summary.has_start and not MODES[mode].is_filtered:
                    row["released"] = "not with a start: it is released before the search"
                elif summary.visibility == "noisy" and MODES[mode].is_public_search:
                    row["released"] = "not with noisy scores, which are of private records"
        else:
            row["epsilon"] = shown_epsilon(cost.epsilon)
            row["delta"] = shown_delta(summary.terms.delta)
            row["accountant"], row["released"] = cost.accountant, cost.released
        rows.append(row)
    columns = ("", "mode", "epsilon", "delta", "accountant", "released")
    return [{column: row.get(column) for column in columns} for row in rows]


def _caption(summary: PlanSummary) -> str:
    """Return what stands below the table of modes: terms, and what each figure holds for."""
    terms = summary.terms
    lines = [
        "Study epsilon by accounting mode (* the spec's). Every epsilon: "
        f"delta={shown_delta(terms.delta)}, unit={terms.privacy_unit}, "
        f"{terms.neighboring_relation}, sampling={terms.sampling}, a trial's by "
        f"{terms.accountant}. --explain shows more."
    ]
    lines += [f"{mode}: {cost.assumes}" for mode, cost in summary.modes.items() if cost is not None]
    if summary.modes[UNACCOUNTED.name] is None and summary.composed_epsilon is not None:
        trials = "all trials" if summary.episodes is None else "the trials of one episode"
        lines.append(
            f"unaccounted: {trials} composed would cost {shown_epsilon(summary.composed_epsilon)} "
            f"{summary.indication_is}"
        )
    return "\n".join(lines)

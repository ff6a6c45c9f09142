"""The verbs ``plan`` and ``simulate``: what a sweep will cost, before anything starts."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsweep.cli_base import Json, Output, Sets, Spec, load_checked, say
from dpsweep.errors import BadInputError
from dpsweep.output import Format, print_records

if TYPE_CHECKING:
    from dpsweep.planning import PlanSummary
    from dpsweep.preflight import Preflight
    from dpsweep.simulate import PolicyRun

DEFAULT_POLICIES = "fifo,median,epsilon_halving"
_EPSILONS = ("epsilon", "composed_epsilon", "study_epsilon", "sum_rule_epsilon")
LINE_EVERY_S = 5.0  # of progress, where stderr is no terminal


def plan(
    spec: Spec, sets: Sets = None, output: Output = Format.TABLE, as_json: Json = False
) -> None:
    """Show what a sweep will do and cost, before anything starts.

    Plans are those of configurations drawn from the space. Time and disk are measured with a few
    steps on made-up records; no private record is opened.
    """
    from dpsweep.estimate import estimate
    from dpsweep.planning import draw_sample, expected_trials, summarize_plan
    from dpsweep.pretrain import plan_pretraining

    checked = load_checked(spec, sets)
    sample = draw_sample(checked)
    summary = summarize_plan(checked, sample)
    num_trials = expected_trials(checked)
    forecast = estimate(checked, sample.tasks, num_trials=num_trials).to_dict()
    output = Format.JSON if as_json else output
    weights = plan_pretraining(checked.spec)
    if output is not Format.TABLE:
        record = {**summary.to_dict(), "pretrain": weights or None, "estimate": forecast}
        print_records(record, output)
        return
    first = {"pretrain": weights} if weights else {}
    print_records({**first, **_plan_cells(summary, forecast)}, output)
    print_records(_mode_rows(summary), output, caption=_caption(summary))


def _plan_cells(summary: PlanSummary, forecast: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first table: nested records become one line each, epsilons are rounded up."""
    from dpsweep.privacy.accountants import shown_epsilon

    record = summary.to_dict()
    modes = record.pop("study_epsilon_by_mode")
    if summary.start is not None:
        record["start"] = str(summary.start)
    cells: dict[str, Any] = {}
    for key, value in _with_facts(record):
        if key.startswith(_EPSILONS) and value is not None:
            shown = [shown_epsilon(v) for v in value] if isinstance(value, list) else [value]
            value = " to ".join(v if isinstance(v, str) else shown_epsilon(v) for v in shown)
        elif isinstance(value, list) and len(value) == 2 and not isinstance(value[0], str):
            value = " to ".join(f"{number:.6g}" for number in value)
        cells[key] = value
    assert set(modes) >= {summary.accounting}
    cells["filter"], cells["selection"] = _filter_text(summary), _selection_text(summary)
    cells["time"], cells["disk"] = _time_text(forecast), _disk_text(forecast)
    return {key: value for key, value in cells.items() if value not in (None, [], "")}


def _with_facts(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a record's items; what methods say of their plans comes one by one."""
    for key, value in record.items():
        yield from value.items() if key == "plan_facts" else [(key, value)]


def _filter_text(summary: PlanSummary) -> str:
    figures = summary.composed
    if figures is None:
        return ""
    low, middle, high = (f"{n}" if math.isfinite(n) else "any number" for n in figures.fits)
    start = " after the start" if summary.start else ""
    return (
        f"accounting composed: Renyi order {figures.order:g}, budget {figures.budget:.4f}; "
        f"study_epsilon={figures.target_epsilon:g} admits{start}, as full-length trials, {middle} "
        f"of the median cost ({low} of the smallest, {high} of the largest)"
    )


def _selection_text(summary: PlanSummary) -> str:
    from dpsweep.privacy.accountants import shown_epsilon

    figures = summary.selection
    if figures is None:
        return ""
    text = (
        f"accounting select: {figures.mean:g} trials expected (shape {figures.shape}), a single "
        f"one with probability {figures.probability_of_one:.3g}; a trial "
        f"becomes epsilon={shown_epsilon(figures.epsilon)} (rdp; alone it is at most "
        f"{shown_epsilon(figures.base_epsilon)} by the largest of the sampled Renyi curves)"
    )
    if figures.cap is None:
        return text
    verdict = "fits" if figures.fits else "does not fit"
    text += f", which {verdict} study_epsilon={figures.cap:g}"
    largest = figures.trial_epsilon_that_fits
    if largest is not None:
        also = (
            "trial_epsilon may be as large as"
            if figures.fits
            else "to fit it, set trial_epsilon to"
        )
        text += f"; {also} {largest:g}"
    return text


def _time_text(forecast: Mapping[str, Any]) -> str:
    if forecast["seconds_per_trial"] is None:
        return f"not measured: {forecast['because']}"
    low, high = forecast["seconds_per_trial"]
    text = (
        f"roughly {_duration(low)} to {_duration(high)} a trial, "
        f"{_duration(forecast['slot_seconds'])} in all"
    )
    if forecast["wall_seconds"] is not None:
        wall = _duration(forecast["wall_seconds"])
        text += f", {wall} on the {forecast['slots']} slots of this machine"
    return f"{text} ({forecast['note']})"


def _disk_text(forecast: Mapping[str, Any]) -> str:
    if forecast["disk_bytes"] is None:
        return ""
    return (
        f"roughly {_size(forecast['disk_bytes'])}: two checkpoints a trial of up to "
        f"{_size(forecast['checkpoint_bytes'])}, ledgers and journal"
    )


def _duration(seconds: float) -> str:
    """Return seconds for people.

    >>> _duration(0.42), _duration(75), _duration(7260)
    ('0.4 s', '1.2 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    """Return bytes for people.

    >>> _size(900), _size(2_500_000)
    ('900 B', '2.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _mode_rows(summary: PlanSummary) -> list[dict[str, Any]]:
    from dpsweep.privacy.accountants import shown_epsilon

    rows = []
    for mode, cost in summary.modes.items():
        row = {"": "*" if mode == summary.accounting else "", "accounting": mode}
        if cost is None:
            row["study epsilon"] = "none"
            row["released"] = "no claim about the search is made"
            trials = "all trials" if summary.episodes is None else "the trials of one episode"
            if mode != "unaccounted":
                row["released"] = "no price: some trial has no plan or no finite epsilon"
                if summary.episodes is not None:
                    row["released"] = "not for episodes: drawing them reads labels"
                elif summary.has_start and mode != "composed":
                    row["released"] = "not with a start: it is released before the search"
            elif summary.composed_epsilon is not None:
                row["holds for"] = (
                    f"composed, {trials} would cost {shown_epsilon(summary.composed_epsilon)} "
                    "(rdp): an indication, no guarantee"
                )
        else:
            row["study epsilon"] = shown_epsilon(cost.epsilon)
            row["accountant"], row["released"] = cost.accountant, cost.released
            row["holds for"] = cost.assumes
        rows.append(row)
    columns = ("", "accounting", "study epsilon", "accountant", "released", "holds for")
    return [{column: row.get(column) for column in columns} for row in rows]


def _caption(summary: PlanSummary) -> str:
    return (
        f"Study epsilon by accounting mode (* the spec's), at delta {summary.delta:g}, unit "
        f"{summary.privacy_unit}, {summary.neighboring_relation}, {summary.sampling} sampling."
    )


def simulate(
    spec: Spec,
    sets: Sets = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Most trials; default: the spec's.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help=f"Schedulers to compare; default: {DEFAULT_POLICIES}, or fifo alone where the "
            "spec allows no other."
        ),
    ] = None,
    curves: Annotated[
        str | None,
        typer.Option(help="JSON lines of recorded curves, or study:NAME; default: made up."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Default: the spec's.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 8,
    output: Output = Format.TABLE,
) -> None:
    """Compare schedulers under a simulated clock: the spec's search and budgets, no training."""
    from dpsweep.simulate import simulate as run

    checked = load_checked(spec, sets)
    if seed is not None:
        reseeded = checked.spec.model_copy(update={"seed": seed})
        checked = dataclasses.replace(checked, spec=reseeded)
    names = _policies(policies, checked)
    progress = _Progress(names)
    found = run(
        checked,
        _curves(curves, checked),
        policies=names,
        num_trials=trials,
        slots=slots,
        progress=progress,
    )
    progress.close()
    for outcome in found:
        say(f"{outcome.policy}: {outcome.started} trials in {outcome.seconds:.1f} s")
    rows = [_simulated_row(outcome, checked, output) for outcome in found]
    print_records(rows, output, caption=_simulated_caption(checked, found))


def _policies(given: str | None, checked: Preflight) -> list[str]:
    """Return the schedulers to compare, each once, in the order given."""
    from dpsweep.registry import did_you_mean
    from dpsweep.schedulers import POLICIES

    if given is None:
        spec = checked.spec
        only_fifo = spec.privacy.accounting == "select" or spec.privacy.accountant == "pld"
        only_fifo = only_fifo or spec.episodes is not None
        return ["fifo"] if only_fifo else DEFAULT_POLICIES.split(",")
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in names:
        if name not in POLICIES:
            hint = did_you_mean(name, list(POLICIES))
            raise BadInputError(
                f"no scheduler {name!r}", fix=hint or f"known: {', '.join(POLICIES)}"
            )
    return names


def _curves(source: str | None, checked: Preflight) -> Any:
    from dpsweep.curves import SyntheticCurves, TableCurves, read_curves

    spec = checked.spec
    noise = spec.data.validation.noise_std or 0.0
    if source is None:
        maximize = spec.search.mode == "max"
        return SyntheticCurves(
            checked.space.parameters, seed=spec.seed, maximize=maximize, noise=noise
        )
    rows = read_curves(source, metric=spec.search.metric, root=Path(spec.storage.path))
    return TableCurves(rows, checked.space.parameters, seed=spec.seed, noise=noise)


def _simulated_row(outcome: PolicyRun, checked: Preflight, output: Format) -> dict[str, Any]:
    from dpsweep.privacy.accountants import shown_epsilon

    spec, epsilon = checked.spec, outcome.composed_epsilon
    counts = {
        key: getattr(outcome, key)
        for key in ("policy", "started", "finished", "stopped", "infeasible", "steps")
    }
    if output is Format.TABLE:
        return {
            **counts,
            "epsilon": shown_epsilon(epsilon),
            "simulated s": outcome.hours * 3600,
            "best": outcome.best,
            "full length": outcome.full_score,
            "regret": outcome.regret,
            "ended because": outcome.end_reason,
        }
    return {
        **counts,
        "composed_epsilon": epsilon,
        "composed_epsilon_is": _meaning(checked),
        "study_epsilon": spec.privacy.study_epsilon,
        "delta": spec.privacy.delta,
        "privacy_unit": spec.privacy_unit,
        "neighboring_relation": spec.privacy.neighboring_relation,
        "sampling": outcome.sampling,
        "accountant": "rdp",
        "accounting": spec.privacy.accounting,
        "simulated_hours": outcome.hours,
        "metric": spec.search.metric,
        "best": outcome.best,
        "full_length": outcome.full_score,
        "best_full_length_drawn": outcome.best_full,
        "regret": outcome.regret,
        "ended_because": outcome.end_reason,
        "seed": spec.seed,
    }


def _meaning(checked: Preflight) -> str:
    privacy = checked.spec.privacy
    if privacy.accounting == "composed":
        return (
            "what the study's filter has committed, for information: the study's guarantee is "
            f"study_epsilon={privacy.study_epsilon:g}"
        )
    return "everything that was run, composed: an indication, no guarantee"


def _simulated_caption(checked: Preflight, outcomes: Sequence[PolicyRun]) -> str:
    spec = checked.spec
    samplings = ", ".join(sorted({outcome.sampling for outcome in outcomes}))
    return (
        f"Simulated, seed {spec.seed}: no figure but the costs is about real training. steps: of "
        f"all trials, stopped ones included. epsilon: {_meaning(checked)}; delta "
        f"{spec.privacy.delta:g}, unit {spec.privacy_unit}, "
        f"{spec.privacy.neighboring_relation}, {samplings} sampling, rdp, accounting "
        f"{spec.privacy.accounting}. best: {spec.search.metric} as the best finished trial "
        "reported it; full length: its score at the end without noise; regret: its distance from "
        "the best configuration that any of these policies drew."
    )


class _Progress:
    """One line on stderr that says how far a long simulation is."""

    def __init__(self, policies: list[str]) -> None:
        self._policies, self._started = policies, time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._shown = False
        self._said = self._started

    def __call__(self, policy: str, ended: int, share: float) -> None:
        """Show the share of all policies that is done, and when the rest will be."""
        if not self._is_terminal and time.monotonic() - self._said < LINE_EVERY_S:
            return
        self._said = time.monotonic()
        index = self._policies.index(policy)
        done = (index + min(share, 1.0)) / len(self._policies)
        spent = time.monotonic() - self._started
        left = f"{int(spent * (1 - done) / done)} s" if done > 0.01 else "..."
        text = f"{policy}: {ended} trials ended | {done:.0%} | ETA {left}"
        self._shown = True
        if self._is_terminal:
            print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)
        else:
            say(text)

    def close(self) -> None:
        """End the line."""
        if self._shown and self._is_terminal:
            say("")

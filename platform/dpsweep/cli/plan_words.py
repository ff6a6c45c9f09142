"""Words of a plan, in a few sentences: trials, budget, time, claim, the dataset's ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpsweep.foundation.words import counted, exact
from dpsweep.planning.costs.composition import DeclaredFigures
from dpsweep.planning.costs.dataset import DatasetLeft
from dpsweep.planning.costs.probing import ProbingFigures
from dpsweep.planning.costs.secret_part import SecretPartFigures
from dpsweep.planning.costs.selection import SelectionFigures
from dpsweep.planning.preflight import Preflight
from dpsweep.planning.sample import FinalFigures
from dpsweep.planning.summary import PlanSummary
from dpsweep.privacy.modes import MODES
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.results.coverage import caveats_of


def plan_words(
    checked: Preflight,
    summary: PlanSummary,
    forecast: Mapping[str, Any],
    dataset: DatasetLeft | None,
) -> list[str]:
    """Return what a sweep will do and claim, a sentence or two each."""
    sentences = [_search(checked, summary), _fits(checked, summary), _time(summary, forecast)]
    sentences += [_claim(checked, summary), str(dataset or "")]
    return [sentence for sentence in sentences if sentence]


def _search(checked: Preflight, summary: PlanSummary) -> str:
    spec, methods = checked.spec, ", ".join(sorted(checked.methods))
    mode = spec.privacy.mode
    if summary.probing is not None:
        return f"Study {spec.name!r}: {_probes(summary.probing)} of {methods}."
    if mode.is_sealed and summary.selection is not None:
        which = f"a random number of trials, {summary.selection.mean:g} expected, drawn in secret,"
    elif mode.is_sealed:
        which = "a random number of trials"
    elif spec.episodes is not None:
        number = summary.num_trials // spec.episodes.number
        which = f"{counted(number, 'configuration')} on each of "
        which += f"{counted(spec.episodes.number, 'episode')}, "
        which += counted(summary.num_trials, "trial")
    elif spec.search.sampler == "grid":
        of = f"{counted(len(checked.space.grid()), 'configuration')} of the grid"
        which = f"all {of}" if summary.num_trials > 1 else of
        if summary.num_trials < len(checked.space.grid()):
            which = f"{summary.num_trials} of {of}"
    else:
        most = counted(summary.num_trials, "configuration")
        which = f"at most {most}, drawn by {spec.search.sampler},"
    stops = {
        "fifo": "each runs to its end",
        "median": "those below the median of the others are stopped early",
        "epsilon_halving": "the weak ones are stopped early, at equal epsilon",
        "noisy_prefix": "all run their noisy prefix, then the best "
        + ("goes" if spec.scheduler.keep == 1 else f"{spec.scheduler.keep} go")
        + " on",
    }[spec.scheduler.type]
    first = ""
    if summary.start is not None:
        runs = summary.start.runs
        first = (
            f" First {'comes' if runs == 1 else 'come'} {counted(runs, 'private run')} of "
            f"{summary.start.method}."
        )
    if spec.subset_rate is not None and checked.rest is not None:
        first += (
            f" All this is on a secret part of the {checked.rest.info.num_private} declared "
            f"private records, each in it with probability {spec.subset_rate:g}; the best one is "
            "then run once, on all of them."
        )
    elif checked.rest is not None:
        part, rest = checked.info.num_private, checked.rest.info.num_private
        first += (
            f" All this is on {counted(part, 'declared private record')}; the best one is then run "
            f"once, on the {rest} others."
        )
    by = " and ".join(spec.search.compared_by)
    return (
        f"Study {spec.name!r}: {which} of {methods}, compared by {by}; {stops}."
        f"{_planless(checked, summary)}{first}"
    )


def _planless(checked: Preflight, summary: PlanSummary) -> str:
    """Say how many points of a grid are never run, where all of them were planned."""
    number = round(summary.infeasible * summary.num_sampled)
    if not (summary.is_exact and number) or checked.spec.privacy.mode.is_public_search:
        return ""
    has = "has" if number == 1 else "have"
    return f" {number} of the grid's {summary.num_sampled} points {has} no plan."


def _probes(figures: ProbingFigures) -> str:
    span = f"{figures.parameter} from {figures.low:g} to {figures.high:g}"
    spares = ""
    if figures.spares:
        spares = f", then up to {figures.spares} more beyond an end that is best"
    return (
        f"{figures.num_probes} probes of {span} at epsilon={shown_epsilon(figures.probe_epsilon)} "
        f"each{spares} (all together {shown_epsilon(figures.probes_epsilon)} by pld); then, at the "
        f"best value between them, one final run at epsilon={shown_epsilon(figures.final_epsilon)}"
    )


def _fits(checked: Preflight, summary: PlanSummary) -> str:
    if not checked.spec.privacy.mode.is_filtered or summary.composed is None:
        return ""
    if summary.declared is not None and summary.declared.barrier is not None:
        return _at_barrier(checked, summary.declared)
    if checked.spec.scheduler.type == "noisy_prefix" and summary.declared is not None:
        return f"It cannot be declared: {summary.declared.problem}."
    most, (high, _, low) = summary.num_trials, summary.composed.fits
    if summary.composition == "declared" and summary.declared is not None:
        high = low = summary.declared.num_trials
    least, at_most = min(low, most), min(high, most)
    if least >= most == 1:
        return "It fits into the study's budget, even if it runs to its end."
    if least >= most:
        return f"All {most} fit into the study's budget, even if each runs to its end."
    span = f"{least:g}" if least == at_most else f"{least:g} to {at_most:g}"
    text = f"{span} of them fit into the study's budget if they run to their ends"
    if at_most == 1:
        text = f"{span} of them fits into the study's budget if it runs to its end"
    stops = checked.spec.scheduler.type != "fifo"
    text += "; what stopped ones do not spend buys more." if stops else ", by what they cost."
    declared = summary.declared
    if summary.composition == "filter" and declared is not None and declared.num_trials > at_most:
        more = f"{declared.num_trials}: privacy.composition: declared"
        text += f" Declared beforehand it would be {more}."
    return text


def _at_barrier(checked: Preflight, declared: DeclaredFigures) -> str:
    figures, privacy = declared.barrier, checked.spec.privacy
    assert figures is not None
    goes = "goes" if figures.keep == 1 else "go"
    number, most = declared.num_trials, checked.num_trials
    which = f"All {most}" if number == most else f"{number} of {most}"
    text = (
        f"{which} fit into the study's budget: {figures.steps} of {figures.num_steps} steps each, "
        f"and the best {figures.keep} {goes} on to the end. A trial that does costs "
        f"epsilon={shown_epsilon(figures.epsilon)} alone (pld), and "
        f"{shown_epsilon(declared.epsilon)} with the whole search, of "
        f"{exact(privacy.study_epsilon)}."
    )
    fits = figures.trial_epsilon_that_fits
    if fits is not None:
        text += f" privacy.trial_epsilon={fits:g} would use the budget up with all {most}."
    return text


def _time(summary: PlanSummary, forecast: Mapping[str, Any]) -> str:
    if forecast["seconds_per_trial"] is None:
        return f"Time and memory are not forecast: {forecast['because']}."
    number: float = summary.num_trials
    if MODES[summary.terms.accounting].is_filtered and summary.composed is not None:
        fits = summary.composed.fits[1]
        if summary.composition == "declared" and summary.declared is not None:
            fits = summary.declared.num_trials
        number = min(number, max(fits, 1))
    share = of_disk = number / max(summary.num_trials, 1)  # each trial keeps its checkpoints
    barrier = None if summary.declared is None else summary.declared.barrier
    if barrier is not None:
        before = barrier.steps / barrier.num_steps
        share *= before + min(barrier.keep / number, 1.0) * (1 - before)
    where = ""
    final = forecast["final_run_seconds"] or 0.0  # once, however few the trials
    seconds = (forecast["slot_seconds"] - final) * share
    if forecast["wall_seconds"] is not None:
        trials_s = (forecast["wall_seconds"] - final) * share
        seconds = max(trials_s, forecast["seconds_per_trial"][1])
        where = f" on {counted(forecast['slots'], 'slot')} of this machine"
    trials = counted(float(number), "trial")
    ends = "run to its end" if number == 1 else "all run to their ends"
    if barrier is not None:
        ends = f"{barrier.keep} of them to the end"
    seconds += final
    takes = "Less than a second" if seconds < 1 else f"Roughly {duration(seconds)}"
    text = f"{takes} of training{where} for {trials}, {ends}"
    if forecast["start_seconds"]:
        text += f", plus about {forecast['start_seconds']:.0f} s to start and to end the study"
    fixed = forecast["disk_bytes_beside_trials"]
    disk = fixed + (forecast["disk_bytes"] - fixed) * of_disk
    return f"{text}; roughly {size(disk)} of disk."


def declared_words(summary: PlanSummary) -> str:
    """Return what both compositions of a composed study admit, and which one is better."""
    figures, filtered = summary.declared, summary.composed
    if figures is None or filtered is None:
        return ""
    if figures.problem:
        return f"not possible: {figures.problem}"
    by_filter = min(filtered.fits[1], summary.num_trials)
    terms = f"epsilon={shown_epsilon(figures.epsilon)} by pld"
    if figures.barrier is not None:
        classes = ", then ".join(figures.barrier.classes)
        return f"{counted(figures.num_trials, 'trial')} in two phases: {classes}; {terms}"
    text = f"{counted(figures.num_trials, 'trial')} run to their ends, declared beforehand: {terms}"
    is_better = figures.num_trials > by_filter
    if figures.num_trials == by_filter:
        return f"{text}; as many as the filter admits"
    more = "more than" if is_better else "fewer than"
    text += f"; {more} the {by_filter:g} that the filter admits"
    if is_better and summary.composition == "filter":
        text += ": set privacy.composition: declared"
    return text


def final_words(final: FinalFigures) -> str:
    """Return what the run after a search on a part of the records is like."""
    rates = "".join(f"; {name} times {_span(*span)}" for name, span in final.factors.items())
    return (
        f"{_span(*final.steps)} steps of {_span(*final.expected_batch)} of {final.records} records"
        f", noise multiplier {_span(*final.noise_multiplier)}: within "
        f"epsilon={shown_epsilon(final.epsilon)} ({final.accountant}){rates}"
    )


def _span(low: float, high: float) -> str:
    less, more = (f"{n}" if isinstance(n, int) else f"{n:.4g}" for n in (low, high))
    return less if less == more else f"{less} to {more}"


def duration(seconds: float) -> str:
    """Return seconds for people.

    >>> duration(0.42), duration(0.003), duration(75), duration(7260)
    ('0.4 s', 'under 0.1 s', '1.2 min', '2.0 h')
    """
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Return bytes for people.

    >>> size(900), size(2_500_000)
    ('900 B', '2.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _of_secret_part(figures: SelectionFigures, part: SecretPartFigures, terms: str) -> str:
    """Say what a search on a secret part of the records costs, and what its final run keeps."""
    alone = shown_epsilon(part.search_epsilon)
    if part.final_epsilon is None:
        return f"It has no price: privacy.study_epsilon {part.problem} ({terms})."
    return (
        f"It will claim epsilon={shown_epsilon(figures.epsilon)} for its final run, whose model "
        "and configuration are released, and nothing else. The search alone would cost "
        f"{alone}, a trial of it at most {shown_epsilon(figures.base_epsilon)} on what it reads; "
        f"the final run keeps {shown_epsilon(part.final_epsilon)} ({terms})."
    )


def _claim(checked: Preflight, summary: PlanSummary) -> str:
    privacy, mode, terms = checked.spec.privacy, checked.spec.privacy.mode, summary.terms.line()
    caveats = "".join(f" {c[0].upper()}{c[1:]}." for c in caveats_of(checked.spec))
    dearest = privacy.trial_epsilon if summary.probing is None else summary.probing.final_epsilon
    who = "a trial" if all(m.is_private for m in checked.methods.values()) else "a private trial"
    trial = f"{who} alone costs at most epsilon={shown_epsilon(dearest)}"
    if mode.is_filtered and privacy.study_epsilon is not None:
        claim = f"epsilon={shown_epsilon(privacy.study_epsilon)} for all that the study releases"
        cost = summary.modes[mode.name]
        by = (
            ""
            if cost is None or cost.accountant == privacy.accountant
            else f" by {cost.accountant}"
        )
        text = f"It will claim {claim}{by}, however much of it is used; {trial} ({terms})."
        if checked.rest is not None:
            text += (
                f" The search and its final run may each cost that ({privacy.accountant} bounds "
                "the latter): a record is in one of the two, so the larger counts, not the sum."
            )
    elif mode.is_sealed and summary.selection is not None:
        figures = summary.selection
        if figures.secret_part is not None:
            return _of_secret_part(figures, figures.secret_part, terms) + caveats
        claim = f"epsilon={shown_epsilon(figures.epsilon)} for its winner, and for nothing else"
        text = f"It will claim {claim}; {trial} ({terms})."
        if figures.cap is not None:
            verdict = "fits" if figures.fits else "does not fit"
            text = f"{text} That {verdict} study_epsilon={exact(figures.cap)}"
            largest = figures.trial_epsilon_that_fits
            fix = (
                "" if largest is None or figures.fits else f"; to fit it: trial_epsilon={largest:g}"
            )
            text += f"{fix}."
    elif mode.is_public_search:
        claim = f"epsilon={shown_epsilon(privacy.trial_epsilon)} at most, for its one final run"
        text = f"It will claim {claim}; the search reads public records only ({terms})."
    elif not mode.is_accounted and summary.epsilon is not None:
        text = f"It will claim nothing for the search; {trial} ({terms})."
        composed = summary.composed_epsilon
        if composed is not None and math.isfinite(composed):
            which = "All trials" if summary.episodes is None else "The trials of one episode"
            text += f" {which} composed cost {shown_epsilon(composed)} {summary.indication_is}."
    elif not mode.is_accounted:
        text = "It will claim nothing: no trial has a finite epsilon."
    else:
        text = f"It has no price under accounting {mode.name}: some trial has no finite epsilon."
    return text + caveats

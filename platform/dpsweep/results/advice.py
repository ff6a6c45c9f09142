"""Advice on what is left of a study's budget, as a command: thrift that is not used is lost."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from pathlib import Path
from statistics import NormalDist, fmean

from dpsweep.foundation.errors import StudyError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.logs import read_log
from dpsweep.foundation.words import counted
from dpsweep.ledgers.trial import trial_spent
from dpsweep.results.study import SweepResult
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.study.trial import MOVING, TIME_PASSED, TrialState
from dpsweep.tracking.state import TrackingState

_MOST_PLANS = 32  # of which the mean cost of a whole plan is taken


def advice(result: SweepResult) -> list[str]:
    """Return lines on the budget of a composed study, and on noisy accuracies that tell nothing.

    The command is the same from wherever it is asked: it runs the spec that the study keeps.

    Args:
        result: The study.

    Guarantees:
        Nothing is said of a study whose claim was given up, nor under ``select``, where the number
        of trials is secret. More trials never change what a composed study claims: its composition
        admits a trial only if the whole study stays within the declared epsilon.
    """
    doubt, share = noise_alone(result), used_share(result)
    if share is None:
        return doubt
    composition = result.claims.account.composition
    measure = "" if composition is None else composition.measure
    whose, number = "the study", len(result.view.trials)
    if result.spec.search.on is not None:
        whose = "the search"
        number -= sum(map(result.claims.is_final, result.view.trials.values()))
    usage = (
        f"budget: {math.ceil(100 * share)}% of what {whose} may spend is used or reserved by "
        f"{counted(number, 'trial')} (in {measure}, by which k equal trials use "
        "k times the share of one; by epsilon they do not)"
    )
    more = trials_that_fit(result)
    begun = len(result.view.trials) - result.spec.num_starts
    change, end = f"search.num_trials={begun + more}", ":"
    if result.view.end_reason == TIME_PASSED:
        more = min(more, result.spec.search.num_trials - begun)
        change, end = "search.max_time=null", ", without the search.max_time that has passed:"
    has_none = not result.view.count(TrialState.FINISHED)
    can_go_on = result.state == "finished" and result.view.goes_on(None)
    if has_none or more <= 0 or not can_go_on:
        return [*doubt, usage]
    trials = "one more trial fits" if more == 1 else f"about {more} more trials fit"
    return [
        *doubt,
        f"{usage}; it claims all of it, used or not, so that {trials} at no further cost{end}",
        "  " + command(result, change),
    ]


def noise_alone(result: SweepResult) -> list[str]:
    """Return a line where no noisy accuracy stands out from the noise; else none.

    It reads the noisy accuracies alone. An evaluation that fails tells nothing else of itself.
    """
    part = result.spec.data.validation
    if part.visibility != "noisy" or part.noise_std is None or result.claims.mode.is_sealed:
        return []
    trials = result.view.trials.values()
    values = [trial.value for trial in trials if trial.value is not None]
    num_scores = sum(len(trial.reports) for trial in trials) or 1
    if not values or max(values) > part.noise_std * NormalDist().inv_cdf(1 - 0.01 / num_scores):
        return []
    return [
        "no noisy accuracy is above what noise alone would be: data.validation.noise_std may be "
        "too large, or validation accuracies cannot be computed, which is not told of private "
        "records; a study with data.validation.visibility: public would say it"
    ]


def undelivered(result: SweepResult) -> str:
    """Return a line on events that the tracking store has not; empty where nothing is known of any.

    As far as the study's own file knows; a store that was moved away since is not asked.
    """
    is_local = not result.source and result.spec.tracking.uri is not None
    if not is_local or result.state == "running" or result.unreleased:
        return ""
    seq = TrackingState.load(result.files.tracking).seq
    lag = sum(record["seq"] > seq for record in read_log(result.files.journal))
    if not lag:
        return ""
    return (
        f"not in the tracking store yet: {counted(lag, 'event')}; nothing is lost, this delivers "
        f"what is missing:\n  {command(result)}"
    )


def used_share(result: SweepResult) -> float | None:
    """Return the share of the study's budget that is reserved or charged; None without one."""
    account = result.claims.account
    if not result.claims.mode.is_filtered or account.composition is None:
        return None
    return min(account.composition.share(account.committed), 1.0)


def trials_that_fit(result: SweepResult) -> int:
    """Return how many trials of the mean cost the rest of the budget admits.

    A trial that starts must fit with its whole plan, and then costs what such trials did.
    """
    account, view = result.claims.account, result.view
    composition = account.composition
    assert composition is not None
    first = result.spec.num_starts
    searched = [number for number in sorted(view.trials) if number >= first]
    if not searched or any(view.trials[number].state in MOVING for number in searched):
        return 0
    plans = []
    for number in searched[-_MOST_PLANS:]:
        with contextlib.suppress(StudyError):  # the files of one trial may be lost
            plans.append(result.files.task(number).full_plan)
    if not plans:
        return 0
    whole = [composition.cost(plan) for plan in plans]
    starts = [composition.cost(trial_spent(result.files.ledger, n)) for n in range(first)]
    fits = []
    for name, limit in composition.limits.items():
        full = fmean(cost[name] for cost in whole)
        spent = account.committed[name] - sum(cost[name] for cost in starts)
        mean, left = spent / len(searched), limit - account.committed[name]
        if full > 0:
            fits.append(int((left - full) / (mean or full)) + 1 if left >= full else 0)
    more = min(fits, default=0)
    if result.spec.search.sampler == "grid":
        more = min(more, len(SearchSpace.from_spec(result.spec.space).grid()) - len(searched))
    return max(more, 0)


def command(result: SweepResult, *overrides: str) -> str:
    """Return the command that continues a study with keys changed, from this directory."""
    files, kept = result.files, list[str]()
    if result.spec.storage.root.resolve() != files.path.parent:
        kept = [f"storage.path={_from_here(files.path.parent)}"]
    sets = "".join(f" --set {shlex.quote(item)}" for item in [*kept, *overrides])
    return f"dpsweep run {shlex.quote(_from_here(files.spec))}{sets}"


def _from_here(path: FilePath) -> str:
    return os.path.relpath(path) if isinstance(path, Path) else str(path)

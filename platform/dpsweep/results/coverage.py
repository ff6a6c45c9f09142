"""Coverage: what an epsilon is about, in words that stand beside it wherever it is shown."""

from __future__ import annotations

from dpsweep.privacy.modes import SEARCHED_PART, UNSEARCHED_REST, Mode
from dpsweep.privacy.terms import OF_ITS_PLAN
from dpsweep.spec.facts import public_files
from dpsweep.spec.study import SweepSpec

#: What the epsilon of a trial that did not run its whole plan is about.
SO_FAR = "what this trial has spent so far, for information: its end may depend on its score"

#: What the epsilon at a step is about where a search on a secret part has found the configuration.
AT_ONCE = "the study's, at every step: what its search and its final run were charged at once"

#: What the epsilon of a trial is about that ended before its plan because its model diverged.
CUT_SHORT = (
    "what this trial has spent, for information: it ended because its model diverged, and when one "
    "does depends on the records"
)

#: What the epsilon of a model of a public search is about.
PUBLIC_MODEL = "a model that no private record was used for"


def so_far(spec: SweepSpec) -> str:
    """Say what the epsilon of a trial at one of its steps is about."""
    return with_caveats(spec, SO_FAR if spec.subset_rate is None else AT_ONCE)


def meaning_of_each(spec: SweepSpec, mode: Mode) -> str:
    """Return the terms and the extent of each epsilon of a search's trials, for Optuna's tools.

    Args:
        spec: Of the study.
        mode: The accounting mode that holds for it now.
    """
    extent = f"one trial alone; of one that did not run its whole plan, {SO_FAR}"
    if spec.privacy.mode.is_public_search:
        extent = PUBLIC_MODEL
    terms = spec.privacy_terms(OF_ITS_PLAN, accounting=mode.name)
    return f"{terms.short()}, {with_caveats(spec, extent)}"


def with_caveats(spec: SweepSpec, what: str) -> str:
    """Say what an epsilon covers: no exact private scores, draws of episodes and public files."""
    return "; ".join([what, *caveats_of(spec)])


def caveats_of(spec: SweepSpec) -> list[str]:
    """Return what no epsilon of a study covers."""
    caveats = [] if spec.episodes is None else ["the draw of its episode is not covered"]
    if spec.data.validation.visibility == "exact":
        caveats.append("exact private validation scores and choices by them are not covered")
    if files := public_files(spec.data):
        are = "are" if len(files) > 1 else "is"
        named = " and ".join(files)
        caveats.append(f"records of {named}, which {are} declared public, are not covered")
    return caveats


def noise_of_scores(spec: SweepSpec) -> list[str]:
    """Say of noisy scores that they are noisy: one may be above 1, and the best one is too high."""
    std = spec.data.validation.noise_std
    if spec.data.validation.visibility != "noisy" or std is None:
        return []
    return [
        f"Validation accuracies have Gaussian noise of standard deviation {std:g}: one may be "
        "above 1 or below 0, and the best of several is likely too high."
    ]


def records_of_trial(spec: SweepSpec, records: str) -> str:
    """Say on which private records a trial's epsilon is; empty where it is on all of them."""
    if spec.searched_share is None:
        return ""
    return UNSEARCHED_REST if records == "rest" else SEARCHED_PART


def released_by_study(spec: SweepSpec, mode: Mode) -> str:
    """Say what the epsilon of a whole study covers, and that of two parts the larger counts."""
    if spec.subset_rate is not None and mode.is_sealed:
        return (
            f"the final run on all private records and its configuration: a search on a secret "
            f"part of them, each with probability {spec.subset_rate:.4g}, has found it, and is "
            "within it too; nothing else of it is released"
        )
    share = spec.searched_share
    if share is None or not mode.is_filtered:
        return mode.released
    return (
        f"{mode.released}; the search on {share:.4g} of the private records and the final run on "
        f"all others (bounded by {spec.privacy.accountant}) are within it each: a record is in one "
        "of the two, so the larger counts and not the sum"
    )

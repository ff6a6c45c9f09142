"""Labels of runs: values that a study's privacy label lets them show, and its downgrade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.privacy import modes
from dpsweep.spec.search.probe import PROBE
from dpsweep.study.events import (
    CardRenewed,
    ModelLogged,
    Pretrained,
    StudyDowngraded,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialReported,
    TrialStarted,
)
from dpsweep.tracking.schema import (
    BEST_OBJECTIVE,
    OBJECTIVE,
    STUDY_SPENT,
    TRAIN_SECONDS,
    plain_score,
)

UNACCOUNTED, SELECT, PUBLIC = modes.UNACCOUNTED.name, modes.SELECT.name, modes.PUBLIC.name
MAX_REASON = 1000

#: Tag of a study that searches on a secret part of the records.
SUBSET_RATE = "dp.subset_rate"
# The only trial whose events a study in select shows: the released winner, whatever its number was.
WINNER = 0
_OF_WINNER = (TrialStarted.kind, TrialEnded.kind, ModelLogged.kind)
_OF_SELECT = (
    StudyStarted.kind, Pretrained.kind, StudyDowngraded.kind, CardRenewed.kind, StudyEnded.kind,
)  # fmt: skip
# Values that would tell how many trials a study in select ran; conditional on that number the
# selection theorem (Papernot & Steinke 2022, Theorem 2) no longer holds.
_TELL_NUMBER_OF_TRIALS = (STUDY_SPENT, "dp/composed_epsilon", "best/trial", TRAIN_SECONDS)
_CLAIM_TAGS = (
    "dp.delta", "dp.trial_epsilon", "dp.study_epsilon", "dp.study_accountant", "dp.composition",
    "dp.filter_order", "dp.released", "dp.accountant", "dp.sampling", "dp.searched_share",
    SUBSET_RATE,
)  # fmt: skip
_OF_STUDY_ALONE = (
    "dp.study_epsilon",
    "dp.study_accountant",
    "dp.released",
)  # what a trial's run must not claim
_OF_SEALED = "dp.trial_epsilon"  # below the released winner's epsilon, and not about it
_NOISY = ("validation/accuracy", OBJECTIVE, BEST_OBJECTIVE)
_SCORES = (*_NOISY, "validation/loss")


def tags_of_trial(
    study_tags: Mapping[str, str], own: Mapping[str, str], *, is_sealed: bool, no_claim: bool
) -> dict[str, str]:
    """Return the privacy tags of a trial's run: its study's, without what it must not claim.

    Args:
        study_tags: Those of the study that begin with ``dp.``.
        own: Of the trial.
        is_sealed: True for a study in ``select``.
        no_claim: True for a trial whose plan has no finite epsilon.
    """
    not_its_own = (*_OF_STUDY_ALONE, *([_OF_SEALED] if is_sealed else []))
    tags = {**{n: t for n, t in study_tags.items() if n not in not_its_own}, **own}
    if no_claim or tags.get("dp.private") == "false":
        # A run that makes no privacy claim carries no delta or cap that would look like one.
        tags = {name: text for name, text in tags.items() if name not in _CLAIM_TAGS}
        tags |= {"dp.private": "false", "dp.epsilon": "inf"}
    else:
        tags["dp.private"] = "true"
    if tags.get("dp.records") == "public":
        tags["dp.sampling"] = "none"  # it draws no private record, and its epsilon is 0
    return tags


def final_run(params: Mapping[str, str], tags: Mapping[str, str]) -> list[str]:
    """Return by which tag, and which value of it, the one run is known that a study delivers.

    Empty where any trial may be the best, and of a selection, which shows its winner only.

    Args:
        params: Of the study's run.
        tags: Of the same run.

    >>> final_run({"search.strategy": "probe"}, {})
    ['dpsweep.role', 'final']
    """
    if params.get("search.strategy") == PROBE:
        return ["dpsweep.role", "final"]
    if PUBLIC in (params.get("privacy.accounting"), tags.get("dp.accounting")):
        return ["dp.records", "private"]
    return ["dp.records", "rest"] if "search.on.split" in params else []


def downgraded_tags(reason: str) -> dict[str, str]:
    """Return the tags of every run of a downgraded study: they replace whatever stood there.

    >>> downgraded_tags("a pruner was attached")["dp.accounting"]
    'unaccounted'
    """
    return {
        "dp.accounting": UNACCOUNTED,
        "dp.downgraded": reason[:MAX_REASON],
        "dp.study_epsilon": "none: downgraded",
        "dp.released": "one trial alone; the cost of the search is not included",
    }


def downgraded_card(card: str | None, reason: str) -> str:
    """Return the card of a downgraded study.

    Guarantees:
        A card that makes another claim than ``unaccounted`` does, for example one that was written
        before the downgrade, is replaced by a notice that makes none.
    """
    claim = modes.UNACCOUNTED.claim
    others = set(modes.CLAIMS.values()) - {claim}
    if card and claim in card and not any(other in card for other in others):
        return card
    return (
        f"## Privacy card\n\n> **{claim}.** (accounting mode: `{UNACCOUNTED}`)\n>\n"
        f"> Downgraded to `{UNACCOUNTED}`: {reason}\n"
    )


def is_sealed(event: Mapping[str, Any]) -> bool:
    """Return whether an event starts a study that may show its winner only.

    A study that was downgraded from ``select`` stays sealed: it has lost its claim, not its reason
    to keep the other trials to itself.
    """
    tags, params = event.get("tags") or {}, event.get("params") or {}
    return SELECT in (tags.get("dp.accounting"), params.get("privacy.accounting"))


def is_shown_by_sealed(event: Mapping[str, Any], study_tags: Mapping[str, str]) -> bool:
    """Return whether a study that shows its winner only may show this event.

    Reports of the final run after a search on a secret part of the records are its own.
    """
    kind = event["event"]
    of_winner = (*_OF_WINNER, TrialReported.kind) if SUBSET_RATE in study_tags else _OF_WINNER
    return kind in _OF_SELECT or (kind in of_winner and event.get("trial") == WINNER)


def tells_number_of_trials(name: str, *, of_study: bool) -> bool:
    """Return whether a metric or tag of a sealed study would give its number of trials away.

    >>> tells_number_of_trials("search/pruned", of_study=True)
    True
    >>> tells_number_of_trials("validation/accuracy", of_study=False)
    False
    """
    counts = of_study and name.startswith(("search/", "dpsweep.trials."))
    return counts or name in _TELL_NUMBER_OF_TRIALS


def joint_sampling(first: str, second: str) -> str:
    """Return the sampling of two things together; what draws no private record adds nothing.

    >>> joint_sampling("", "poisson"), joint_sampling("poisson", "none")
    ('poisson', 'poisson')
    >>> joint_sampling("poisson", "full_batch")
    'mixed'
    """
    samplings = {first, second} - {"", "none"}
    return "mixed" if len(samplings) > 1 else next(iter(samplings), second or first)


def why_unreleased(name: str, tags: Mapping[str, str]) -> str | None:
    """Return why a score is not released under its study's tags, or None if it is.

    >>> why_unreleased("validation/loss", {"dp.validation": "noisy"})
    'noise is added to the accuracy only: the loss of private records has no bound'
    >>> why_unreleased("validation/accuracy", {"dp.validation": "noisy"}) is None
    True
    """
    name = plain_score(name)
    validation, mode = tags.get("dp.validation"), tags.get("dp.accounting")
    is_score = name in _SCORES or name.startswith("validation/")
    if validation == "noisy" and is_score and name not in _NOISY:
        return "noise is added to the accuracy only: the loss of private records has no bound"
    if is_score and validation == "exact" and mode != UNACCOUNTED:
        return (
            f"an exact score of private records is covered by no epsilon, and mode {mode} has one"
        )
    if name.startswith("test/") and tags.get("dp.test") == "private":
        return "the test records are declared private"
    return None

"""The privacy card: what a study's epsilon covers, and what it does not, on one page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.errors import BadInputError
from dpsweep.privacy.accountants import shown_epsilon

# What each accounting mode lets a study say, and nothing more.
CLAIMS: Mapping[str, str] = {
    "composed": "(eps, delta)-DP for the whole sweep, adaptive search included",
    "select": "(eps', delta)-DP for the released winner only",
    "public": "tuned on public data; eps is the final run's",
    "unaccounted": "eps = one run only. Search cost NOT included",
}

REQUIRED = (
    "name",
    "methods",
    "dataset",
    "privacy_unit",
    "neighboring_relation",
    "accountant",
    "delta",
    "trial_epsilon",
    "accounting",
    "validation_visibility",
    "test_visibility",
    "composed",
)
_REQUIRED_OF_COMPOSED = ("delta", "accountant", "sampling")

_RELATIONS = {"add_or_remove_one": "add or remove one record"}
_SAMPLING = {
    "poisson": "Poisson",
    "full_batch": "full batch",
    "mixed": "Poisson and full-batch releases",
    "none": "none yet (no private step has been run)",
}
_VALIDATION = {
    "public": "on records declared public",
    "noisy": "on private records, released with accounted noise",
    "exact": "on private records, without noise",
}
_TEST = {
    "public": "on records declared public",
    "private": "none; the test records are declared private and were never evaluated",
}
_STATES = ("finished", "running", "pruned", "failed", "interrupted", "infeasible")


def privacy_card(facts: Mapping[str, Any]) -> str:
    """Return the privacy card of a study as Markdown.

    Guarantees:
        No epsilon appears without delta, unit, neighboring relation, sampling, accountant and
        accounting mode: a card with one of them missing is refused. The sentence on what the
        epsilon covers is the accounting mode's own.

    Args:
        facts: Required keys: ``REQUIRED``. ``methods`` is a list of names; ``composed`` the
            statement (``PrivacyStatement.to_json``) over every trial ever run, whose epsilon is
            infinite or None where a trial is not private. Optional: ``num_records`` (declared
            number of records), ``trials`` (state to number), ``best`` (record of the best trial),
            ``study_epsilon`` (cap of the study), ``downgrade`` (why the label is not the one that
            was asked for), ``version``.
    Raises:
        BadInputError: A required fact is missing, or the accounting mode is unknown.
    """
    missing = [name for name in REQUIRED if facts.get(name) in (None, "", [])]
    composed = facts.get("composed") or {}
    missing += [f"composed.{key}" for key in _REQUIRED_OF_COMPOSED if not composed.get(key)]
    if missing:
        raise BadInputError(f"a privacy card cannot be written without {', '.join(missing)}")
    if facts["accounting"] not in CLAIMS:
        raise BadInputError(
            f"unknown accounting mode {facts['accounting']!r}", fix=f"known: {', '.join(CLAIMS)}"
        )
    sections = [
        f"## Privacy card: {facts['name']}",
        _headline(facts),
        _protected(facts),
        _search(facts),
        _not_covered(facts),
        _reproduce(facts),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _up(epsilon: float) -> str:
    """Show an epsilon, rounded up in its last digit."""
    return f"{float(shown_epsilon(epsilon)):g}"


def _number(value: float) -> str:
    return f"{value:g}"


def _headline(facts: Mapping[str, Any]) -> str:
    mode = facts["accounting"]
    each = f"epsilon <= {_number(facts['trial_epsilon'])} at delta = {_number(facts['delta'])}"
    relation, sampling = facts["neighboring_relation"], facts["composed"]["sampling"]
    lines = [f"> **{CLAIMS[mode]}.** (accounting mode: `{mode}`)"]
    if facts.get("downgrade"):
        lines += [">", f"> Downgraded to `{mode}`: {facts['downgrade']}"]
    lines += [
        "",
        f"Each private trial alone: **{each}**, unit: one {facts['privacy_unit']}, neighboring "
        f"data sets: {_RELATIONS.get(relation, relation)}, batch sampling: "
        f"{_SAMPLING.get(sampling, sampling)}, accountant: {facts['accountant']}.",
    ]
    return "\n".join(lines)


def _points(title: str, rows: Sequence[tuple[str, str]]) -> str:
    # A list, not a table: MLflow draws tables without any space between their columns.
    return f"**{title}**\n\n" + "\n".join(f"- {key}: {value}" for key, value in rows)


def _protected(facts: Mapping[str, Any]) -> str:
    records = facts.get("num_records")
    validation, test = facts["validation_visibility"], facts["test_visibility"]
    rows = [
        ("Data", facts["dataset"] + (f", {records} declared records" if records else "")),
        ("Methods", ", ".join(f"`{method}`" for method in facts["methods"])),
        ("Validation scores", _VALIDATION.get(validation, validation)),
        ("Test scores", _TEST.get(test, test)),
    ]
    if "non_private" in facts["methods"]:
        rows.append(("Trials of `non_private`", "epsilon infinite: no privacy claim at all"))
    return _points("What is protected", rows)


def _search(facts: Mapping[str, Any]) -> str:
    rows = []
    trials = facts.get("trials") or {}
    if any(trials.values()):
        counted = [f"{trials[state]} {state}" for state in _STATES if trials.get(state)]
        rows.append(("Configurations", f"{sum(trials.values())} ({', '.join(counted)})"))
    rows.append(("All trials composed", _composed(facts)))
    if facts.get("study_epsilon") is not None:
        rows.append(("Cap of the study", f"epsilon <= {_number(facts['study_epsilon'])}"))
    if facts.get("best"):
        rows.append(("Best trial", _best(facts["best"])))
    return _points("The search", rows)


def _composed(facts: Mapping[str, Any]) -> str:
    composed = facts["composed"]
    epsilon = composed.get("epsilon")
    if composed["sampling"] == "none" and epsilon == 0:
        return "no private step has been run yet"
    if epsilon is None or not math.isfinite(epsilon):
        return "epsilon infinite: some trials are not private"
    text = (
        f"epsilon = {_up(epsilon)} at delta = {_number(composed['delta'])} "
        f"({composed['accountant']})"
    )
    if facts["accounting"] == "unaccounted":
        text += ": an indication, **not a guarantee**"
    return text


def _best(best: Mapping[str, Any]) -> str:
    text = f"trial {best['trial_id']}: {best['metric']} = {best['value']:.4g}"
    epsilon = best.get("epsilon")
    if epsilon is None or not math.isfinite(epsilon):
        return f"{text}, not private"
    return f"{text}, epsilon = {_up(epsilon)} at delta = {_number(best['delta'])} for it alone"


def _not_covered(facts: Mapping[str, Any]) -> str:
    points = []
    if facts["accounting"] == "unaccounted":
        points.append(
            "**The search.** Choosing a winner among many trials reveals more than one trial does. "
            "The composed sum above adds up the training of all trials; no filter enforced it, so "
            "it is a size to think with, not a bound."
        )
    if facts["validation_visibility"] == "exact":
        points.append(
            "**The validation scores.** They are exact statistics of private records and have no "
            "finite epsilon at all; every number and choice derived from them is outside the claim."
        )
    points += [
        "**What the spec declares.** Which records are public, how many are private, and that one "
        "record belongs to one unit is taken from the spec, not checked.",
        "**Side channels**: run time, memory, floating-point rounding, and access to the machine, "
        "its checkpoints or its random state.",
        "**Other studies** on the same data: epsilons of separate studies add up.",
    ]
    return "**Not covered**\n\n" + "\n".join(f"- {point}" for point in points)


def _reproduce(facts: Mapping[str, Any]) -> str:
    version = f" (dpsweep {facts['version']})" if facts.get("version") else ""
    return (
        f"**Reproduce**: `dpsweep run sweep.yaml` with the artifact `sweep.yaml`{version}. Privacy "
        "noise is drawn anew each time and never stored, so scores differ a little."
    )

"""The facts that a privacy card is written from: which it needs, and which it must refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.modes import MODES, SELECT
from dpsweep.tracking.schema import finite

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
)
_REQUIRED_OF_EPSILON = ("delta", "accountant", "sampling")
_REQUIRED_OF_CLAIM = (
    *_REQUIRED_OF_EPSILON,
    "neighboring_relation",
    "privacy_unit",
    "accounting",
    "released",
)


def missing_facts(facts: Mapping[str, Any]) -> list[str]:
    """Return the keys, dotted, that a card needs and the facts lack."""
    missing = [name for name in REQUIRED if facts.get(name) in (None, "", [])]
    needed: dict[str, Sequence[str]] = {}
    study, composed = facts.get("study"), facts.get("composed")
    mode = MODES.get(facts.get("accounting") or "", SELECT)
    if mode.is_accounted and not (mode.is_public_search and study is None):
        needed["study"] = _REQUIRED_OF_CLAIM
    if not mode.is_accounted and (composed is not None or not is_number_secret(facts)):
        needed["composed"] = _REQUIRED_OF_EPSILON
    best = facts.get("best")
    if best and finite(best.get("epsilon")) is not None:
        needed["best"] = _REQUIRED_OF_EPSILON
    for name, keys in needed.items():
        missing += [f"{name}.{key}" for key in keys if not (facts.get(name) or {}).get(key)]
    return missing


def is_number_secret(facts: Mapping[str, Any]) -> bool:
    """Return whether the number of trials stays secret, also after a downgrade."""
    return SELECT.name in (facts.get("accounting"), facts.get("accounting_asked"))


def check_claim(facts: Mapping[str, Any]) -> None:
    """Refuse facts that claim what their accounting mode does not allow.

    Raises:
        BadInputError: They do.
    """
    mode, study = MODES[facts["accounting"]], facts.get("study")
    if not mode.is_accounted:
        if study is not None:
            raise BadInputError("a card under 'unaccounted' has no claim for the study to show")
        return
    if facts.get("downgrade"):
        raise BadInputError(f"a downgraded study is 'unaccounted', not {mode.name!r}")
    if study is None:  # a public search has none before its final run
        return
    if study["accounting"] != mode.name:
        raise BadInputError(f"the study's claim is not one of accounting mode {mode.name!r}")
    if finite(study.get("epsilon")) is None:
        raise BadInputError(f"a study without a finite epsilon has no claim under {mode.name!r}")

"""Comparison of two studies: their specs key by key, their claims, their best scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.privacy.terms import COLUMNS
from dpsweep.results.study import SweepResult
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import ABSENT, Difference, anchored, differences

#: What decides which records a study has, and how they are split.
_OF_RECORDS = ("data.", "seed", "episodes")


@dataclass(frozen=True)
class Side:
    """One of the two: a study as it stands, or a spec that may not have run.

    Attributes:
        name: What people call it.
        spec: Its spec.
        result: Of the study; None for a spec alone.
    """

    name: str
    spec: SweepSpec
    result: SweepResult | None = None


@dataclass(frozen=True)
class Comparison:
    """What two studies differ in.

    Attributes:
        specs: Keys of their specs that differ.
        claims: A row for each fact of their claims and best trials: what, and the value of each.
        why_not: Why their scores or their epsilons do not compare, one line each; empty: they do.
    """

    specs: Sequence[Difference]
    claims: Sequence[tuple[str, Any, Any]]
    why_not: Sequence[str] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a record."""
        return {
            "spec": [
                {"key": each.key, "a": _plain(each.before), "b": _plain(each.after)}
                for each in self.specs
            ],
            "studies": {name: {"a": a, "b": b} for name, a, b in self.claims},
            "is_comparable": not self.why_not,
            "why_not": list(self.why_not),
        }


def compare_studies(a: Side, b: Side) -> Comparison:
    """Return what two studies differ in, and whether their scores and epsilons compare.

    Guarantees:
        Each side shows what ``best`` and its privacy card show of it, and no epsilon without its
        terms; under ``select`` that is the winner alone.
    """
    specs = differences(anchored(a.spec), anchored(b.spec), is_whole=True)
    facts = [_facts(a), _facts(b)]
    names = list(dict.fromkeys(name for each in facts for name in each))
    rows = [(name, facts[0].get(name), facts[1].get(name)) for name in names]
    return Comparison(specs, rows, _why_not(a, b, specs))


def _facts(side: Side) -> dict[str, Any]:
    result = side.result
    if result is None:
        return {"state": "a spec, not a study"}
    statement = result.study_statement()
    facts: dict[str, Any] = {
        "state": result.state,
        "claim": result.claims.mode.claim,
        "epsilon of the study": None if statement is None else statement.epsilon,
        **(result.claims.epsilon_terms() if statement is None else statement.columns()),
        "released": None if statement is None else statement.released,
    }
    try:
        choice = result.choose()
    except NothingWithinBudgetError:
        return facts
    best = choice.best
    return {
        **facts,
        "best trial": best.trial_id,
        f"best {best.metric}": choice.score,
        "epsilon of the best trial": best.epsilon,
        "its sampling": best.statement.sampling,
        "its epsilon covers": best.statement.released,
    }


def _why_not(a: Side, b: Side, specs: Sequence[Difference]) -> list[str]:
    lines = []
    records = [each.key for each in specs if each.key.startswith(_OF_RECORDS)]
    if records:
        lines.append(f"scores: on other records, for the specs differ in {', '.join(records)}")
    metrics = [(side.spec.search.metric, side.spec.search.mode) for side in (a, b)]
    if metrics[0] != metrics[1]:
        lines.append(f"scores: of {metrics[0][0]} and of {metrics[1][0]}")
    terms = [_terms(side) for side in (a, b)]
    differ = [name for name in COLUMNS if terms[0][name] != terms[1][name] and name != "sampling"]
    if differ:
        lines.append(
            "epsilons: "
            + ", ".join(f"{name} is {terms[0][name]} and {terms[1][name]}" for name in differ)
        )
    return lines


def _terms(side: Side) -> dict[str, Any]:
    accounting = None if side.result is None else side.result.claims.accounting
    return side.spec.privacy_terms("none", accounting=accounting).columns()


def _plain(value: Any) -> Any:
    return None if value is ABSENT else value

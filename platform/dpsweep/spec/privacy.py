"""The privacy section of a spec: what a trial may spend, and what the search over many costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.database_path import log_path
from dpsweep.foundation.errors import BadInputError, Mistake
from dpsweep.privacy.modes import MODES, UNACCOUNTED, UNDECIDED, Mode
from dpsweep.spec.base import (
    AS_NUMBER,
    Part,
    Positive,
    Text,
    dotted,
    given,
    maybe_number,
    number,
    peek_mode,
    peek_word,
    seen,
)

#: An epsilon beyond it is a slip: it promises nothing at all.
MAX_EPSILON = 1e6


def _shape(value: Any) -> float | str:
    """Return eta of the truncated negative binomial distribution, or ``poisson``."""
    if value == "poisson":
        return "poisson"
    try:
        result = number(value)
    except ValueError:
        raise ValueError(f"must be a number >= 0 or poisson, got {seen(value)}") from None
    if result < 0:
        raise ValueError(f"must be >= 0, got {seen(value)}")
    return float(result)


class SelectionSpec(Part):
    """How many trials a search under ``select`` runs: a random number, drawn before the first.

    The distribution is the truncated negative binomial of Papernot & Steinke 2022
    (https://arxiv.org/abs/2110.03620), ``shape`` = eta: 0 is the logarithmic distribution, 1 the
    geometric one; or Poisson.

    Guarantees:
        Covers the release of the best trial alone. The number that is drawn stays secret.
    """

    mean: Annotated[float, Field(ge=1, le=1e6), AS_NUMBER] = Field(
        default=10, description="Expected number of trials."
    )
    shape: Annotated[
        float | Literal["poisson"],
        BeforeValidator(_shape),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "poisson"}]}),
    ] = Field(
        default=1.0,
        description="Spread of their number: 0 (logarithmic: cheapest, often one trial), 1 "
        "(geometric), larger numbers, or poisson (good up to a mean of about 10).",
    )


class PrivacySpec(Part):
    """The budget of one trial, and how the search over many is accounted for.

    Guarantees:
        A private trial spends at most (``trial_epsilon``, ``delta``) under
        ``neighboring_relation``. What the whole search spends is the matter of ``accounting``:
        ``composed`` keeps everything that is released under ``study_epsilon``; ``select`` covers
        the release of the winner alone; ``public`` covers the one final run, since the search
        reads public records only; ``unaccounted`` covers no search.
    """

    delta: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] = Field(
        default=1e-5,
        description="Chance that the guarantee fails: below 1 / number of records. Left out, it is "
        "1e-5, or 1 / (10 N) of N declared records, rounded down, where that is smaller.",
    )
    trial_epsilon: Positive = Field(
        description="say how much epsilon one trial may spend; 1 is strict, 8 is loose"
    )
    accounting: Literal["composed", "select", "public", "unaccounted"] = Field(
        description="it has no default, so that the choice is yours: `composed` keeps all trials "
        "together under study_epsilon; `select` draws their number and releases the best alone; "
        "`public` searches on public records; `unaccounted` says that epsilon is that of one "
        "trial and the cost of the search is not included"
    )
    study_epsilon: Positive | None = Field(
        default=None,
        description="Budget of the whole search: needed for composed, an upper limit for select.",
    )
    composition: Literal["filter", "declared"] | None = Field(
        default=None,
        description="How composed adds its trials up: filter (the default; any plans, chosen as "
        "the search goes on, a Renyi filter), or declared (tighter, by privacy loss distributions; "
        "all trials have one plan, or are points of a grid, and are declared before the first).",
    )
    selection: SelectionSpec = SelectionSpec()
    accountant: Literal["rdp", "pld"] = Field(
        default="rdp",
        description="How epsilon is bounded: rdp (fast), or pld (tighter, slower; only for plans "
        "that are fixed beforehand).",
    )
    neighboring_relation: Literal["add_or_remove_one", "replace_one", "replace_special"] = Field(
        default="add_or_remove_one",
        description="Which two datasets count as neighbours; only add_or_remove_one is available.",
    )
    dataset_ledger: Text | None = Field(
        default=None,
        description="File in which the studies on one dataset add up, or a name in a database, "
        "postgresql://USER@HOST/DATABASE#NAME; null: this study alone.",
    )
    dataset_epsilon: Positive | None = Field(
        default=None,
        description="Cap on the sum of their epsilons; the first study that uses the file sets it.",
    )
    dataset_delta: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] | None = Field(
        default=None, description="Cap on the sum of their deltas; set together with it."
    )

    @property
    def chosen_composition(self) -> str:
        """How a composed study adds its trials up: ``filter`` or ``declared``."""
        return self.composition or "filter"

    @property
    def mode(self) -> Mode:
        """The accounting mode."""
        return MODES[self.accounting]

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse budgets that nothing would keep and accountants that do not bound the mode."""
        mode = peek_mode(raw, "accounting")
        for key in ("trial_epsilon", "study_epsilon", "dataset_epsilon"):
            if (maybe_number(raw.get(key)) or 0) > MAX_EPSILON:
                problem = (
                    f"must be <= {MAX_EPSILON:g}, got {seen(raw[key])}: it would promise nothing"
                )
                fix = "1 is strict, 8 is loose; method non_private trains without privacy"
                yield Mistake(key, problem, fix)
        yield from cls._study_rules(raw, mode)
        is_declared = raw.get("composition") == "declared"
        if mode.is_filtered and raw.get("accountant") == "pld" and not is_declared:
            problem = (
                "pld does not bound composed: a filter that stops an adaptive search at a PLD "
            )
            problem += "epsilon is invalid (https://arxiv.org/abs/2602.06756)"
            yield Mistake("accountant", problem, "use rdp, or composition: declared")
        if mode is not UNDECIDED and not mode.is_filtered and given(raw, "composition"):
            problem = f"has no meaning for {mode.name}: it says how composed adds its trials up"
            yield Mistake("composition", problem, "remove it, or use accounting: composed")
        yield from cls._dataset_rules(raw, mode)
        relation = peek_word(raw, "neighboring_relation")
        if relation in ("replace_one", "replace_special"):
            yield Mistake(
                "neighboring_relation",
                f"{relation!r} is not available yet",
                "use add_or_remove_one; an epsilon under another relation is another number",
            )

    @classmethod
    def _study_rules(cls, raw: Mapping[str, Any], mode: Mode) -> Iterator[Mistake]:
        place = ("study_epsilon",)
        if given(raw, *place):
            study = maybe_number(raw.get("study_epsilon"))
            trial = maybe_number(raw.get("trial_epsilon"))
            if mode is UNACCOUNTED:
                problem = "an unaccounted study has no budget of its own, so this would not be kept"
                yield Mistake(dotted(place), problem, "remove it")
            elif mode.is_public_search:
                problem = "has no meaning for public: the study's epsilon is that of its final run"
                yield Mistake(dotted(place), problem, "remove it; trial_epsilon is the final run's")
            elif mode.is_filtered and study and trial and 0 < study < trial:
                problem = (
                    f"is smaller than trial_epsilon, so no trial would fit: {study:g} < {trial:g}"
                )
                yield Mistake(dotted(place), problem, "raise it, or lower trial_epsilon")
        elif mode.is_filtered:
            problem = "is missing: composed keeps all trials together under it"
            yield Mistake(
                dotted(place),
                problem,
                "two to four times trial_epsilon is usual; see `dpsweep plan`",
            )
        if mode is not UNDECIDED and not mode.is_sealed and given(raw, "selection"):
            problem = (
                f"has no meaning for {mode.name}: it says how select draws the number of trials"
            )
            yield Mistake("selection", problem, "remove it, or use accounting: select")

    @classmethod
    def _dataset_rules(cls, raw: Mapping[str, Any], mode: Mode) -> Iterator[Mistake]:
        caps = ("dataset_epsilon", "dataset_delta")
        if given(raw, "dataset_ledger"):
            if mode is UNACCOUNTED:
                problem = "an unaccounted study has no bound on its cost that could be added up"
                yield Mistake("dataset_ledger", problem, "remove it, or use another accounting")
            if isinstance(raw["dataset_ledger"], str):
                try:
                    log_path(raw["dataset_ledger"])
                except BadInputError as error:
                    yield Mistake("dataset_ledger", error.message, error.fix or "")
            for key, other in (caps, caps[::-1]):
                if given(raw, other) and not given(raw, key):
                    problem = f"is missing: a cap is a pair, and {other} is given"
                    yield Mistake(key, problem, "give both, or neither if the file has its cap")
            return
        for key in caps:
            if given(raw, key):
                problem = "is the cap of a dataset ledger, and there is none"
                yield Mistake(key, problem, "name its file with dataset_ledger, or remove this")

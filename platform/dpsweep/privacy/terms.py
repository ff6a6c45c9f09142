"""The terms of an epsilon: all that it means nothing without, in the words of each reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Literal

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE
from dpsweep.privacy.modes import MODES

#: How records enter events, as a statement names it -> as a page says it. What is not a Poisson
#: sample is ``full_batch``: all records may enter, and no sampling lowers the cost.
SAMPLINGS: Mapping[str, str] = {
    "poisson": "Poisson",
    "full_batch": "full batch",
    "mixed": "Poisson and full-batch releases",
    "none": "none (no private step was run)",
}
AccountantName = Literal["rdp", "pld"]
ACCOUNTANTS: tuple[AccountantName, ...] = ("rdp", "pld")
#: Those that a statement may name: a study of Gaussian noise over all records is composed exactly.
STATED_ACCOUNTANTS = (*ACCOUNTANTS, "gdp")
#: Of an epsilon that is named before any plan is made.
OF_ITS_PLAN = "sampling of its plan"
#: Accounting of one plan alone, a calculator's answer; all others are modes of studies.
SINGLE_RUN = "single_run"
#: Field of the terms -> tag of a run in the tracking store.
TAGS = {
    "delta": "dp.delta",
    "privacy_unit": "dp.unit",
    "neighboring_relation": "dp.adjacency",
    "sampling": "dp.sampling",
    "accountant": "dp.accountant",
    "accounting": "dp.accounting",
}


def shown_delta(delta: float, *, is_left: bool = False) -> str:
    """Return a delta for people: six digits, rounded up, as an epsilon is; down, of what is left.

    >>> shown_delta(1e-5), shown_delta(1 / 60_000), shown_delta(1 / 70_000), shown_delta(3 * 1e-5)
    ('1e-05', '1.66667e-05', '1.42858e-05', '3e-05')
    >>> shown_delta(1 / 70_000, is_left=True), shown_delta(0.0, is_left=True)
    ('1.42857e-05', '0')
    """
    exact = Decimal(f"{delta:.12g}")  # without the last digits of a sum
    last = Decimal(1).scaleb(exact.adjusted() - 5)
    return f"{float(exact.quantize(last, ROUND_FLOOR if is_left else ROUND_CEILING)):g}"


def planned_sampling(sampling: str) -> str:
    """Return the sampling beside an epsilon that is declared: of its plan, until a step is run.

    >>> planned_sampling("none"), planned_sampling("poisson")
    ('sampling of its plan', 'poisson')
    """
    return OF_ITS_PLAN if sampling == "none" else sampling


@dataclass(frozen=True, kw_only=True)
class PrivacyTerms:
    """All that must stand beside an epsilon, whoever shows it.

    Attributes:
        delta: Of the bound.
        accountant: Name of the accountant that computed it.
        neighboring_relation: Which data sets are neighbors.
        sampling: How records enter the events: poisson, full_batch, mixed or none; of several
            plans all of them, with commas between.
        privacy_unit: Whose data one record is.
        accounting: single_run (one plan alone, a calculator's answer) or a study's accounting
            mode: unaccounted, composed, select, public.
    Raises:
        BadInputError: A field is missing or unknown.

    >>> terms = PrivacyTerms(
    ...     delta=1e-5, accountant="rdp", neighboring_relation="add_or_remove_one",
    ...     sampling="poisson", privacy_unit="example", accounting="composed",
    ... )
    >>> terms.line()
    'delta=1e-05, unit=example, add_or_remove_one, sampling=poisson, rdp, accounting=composed'
    >>> terms.short()
    'delta 1e-05, example, add_or_remove_one, poisson, rdp, composed'
    """

    delta: float
    accountant: str
    neighboring_relation: str
    sampling: str
    privacy_unit: str
    accounting: str

    def __post_init__(self) -> None:
        missing = [f.name for f in fields(self) if getattr(self, f.name) in (None, "")]
        if missing:
            raise BadInputError(
                f"a privacy statement without {', '.join(missing)} says nothing",
                fix="state all of " + ", ".join(f.name for f in fields(self)),
            )
        validate.in_unit_interval("delta", self.delta)
        validate.one_of("accountant", self.accountant, STATED_ACCOUNTANTS)
        validate.one_of("neighboring_relation", self.neighboring_relation, (ADD_OR_REMOVE_ONE,))
        for word in self.sampling.split(", "):
            validate.one_of("sampling", word, (*SAMPLINGS, OF_ITS_PLAN))
        validate.one_of("accounting", self.accounting, (SINGLE_RUN, *MODES))

    def columns(self) -> dict[str, Any]:
        """Return the terms as columns of a record, by the names of the fields."""
        return {name: getattr(self, name) for name in COLUMNS}

    def tags(self) -> dict[str, Any]:
        """Return the terms as tags of a run in the tracking store."""
        return {tag: getattr(self, name) for name, tag in TAGS.items()}

    def line(self) -> str:
        """Return the terms in a line, each that is not clear of itself with its name."""
        return (
            f"delta={shown_delta(self.delta)}, unit={self.privacy_unit}, "
            f"{self.neighboring_relation}, sampling={self.sampling.removeprefix('sampling ')}, "
            f"{self.accountant}, "
            f"accounting={self.accounting}"
        )

    def short(self) -> str:
        """Return the terms as short as they can be, for a line of progress."""
        return (
            f"delta {shown_delta(self.delta)}, {self.privacy_unit}, {self.neighboring_relation}, "
            f"{self.sampling}, {self.accountant}, {self.accounting}"
        )


#: Names of the terms in records.
COLUMNS = tuple(field.name for field in fields(PrivacyTerms))

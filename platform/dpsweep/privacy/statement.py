"""A statement of privacy: an epsilon with everything it means nothing without, for people."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, Decimal
from typing import Any

from dpsweep.foundation import _validate
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.accountants import ACCOUNTANTS, ACCOUNTING_MODES
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE

_SMALL, _TINY = Decimal("1e-3"), Decimal("1e-5")  # below: three digits; with an exponent


def shown_epsilon(epsilon: float | None) -> str:
    """Return an epsilon for people: rounded up, never to nearest; ``inf`` where there is none.

    Four decimals; where those would hide it, below 0.001, three significant digits.

    >>> shown_epsilon(1.99991), shown_epsilon(2.0), shown_epsilon(None)
    ('2.0000', '2.0000', 'inf')
    >>> shown_epsilon(0.00012345), shown_epsilon(1e-9), shown_epsilon(0.0)
    ('0.000124', '1.00e-09', '0.0000')
    """
    if epsilon is None or not math.isfinite(epsilon):
        return "inf"
    exact = Decimal(repr(float(epsilon)))
    if not 0 < exact < _SMALL:
        return f"{exact.quantize(Decimal('1e-4'), ROUND_CEILING):f}"
    last = Decimal(1).scaleb(exact.adjusted() - 2)  # the third significant digit
    up = exact.quantize(last, ROUND_CEILING)
    return f"{up:f}" if up >= _TINY else f"{float(up):.2e}"


@dataclass(frozen=True)
class PrivacyStatement:
    """An epsilon together with everything it means nothing without.

    Attributes:
        epsilon: The bound; infinite where there is none.
        delta: Of the bound.
        accountant: Which accountant computed it.
        neighboring_relation: Which data sets are neighbors.
        sampling: How records enter the events: poisson, full_batch, mixed or none.
        privacy_unit: Whose data one record is.
        accounting: single_run (one plan alone, a calculator's answer) or a study's accounting
            mode: unaccounted, composed, select, public.
        released: What the bound is about.
    Raises:
        BadInputError: A field is missing or unknown.
    """

    epsilon: float
    delta: float
    accountant: str
    neighboring_relation: str
    sampling: str
    privacy_unit: str
    accounting: str
    released: str

    def __post_init__(self) -> None:
        missing = [f.name for f in fields(self) if getattr(self, f.name) in (None, "")]
        if missing:
            raise BadInputError(
                f"a privacy statement without {', '.join(missing)} says nothing",
                fix="state all of " + ", ".join(f.name for f in fields(self)),
            )
        if isinstance(self.epsilon, bool) or not self.epsilon >= 0:
            raise BadInputError(f"epsilon must be >= 0, got {self.epsilon!r}")
        _validate.in_unit_interval("delta", self.delta)
        _validate.one_of("accountant", self.accountant, ACCOUNTANTS)
        _validate.one_of("neighboring_relation", self.neighboring_relation, (ADD_OR_REMOVE_ONE,))
        _validate.one_of("sampling", self.sampling, ("poisson", "full_batch", "mixed", "none"))
        _validate.one_of("accounting", self.accounting, ACCOUNTING_MODES)

    def to_json(self) -> dict[str, Any]:
        """Return the fields; an infinite epsilon is the word ``inf``: JSON has no such number."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        if math.isinf(self.epsilon):
            values["epsilon"] = "inf"
        return values

    def terms(self) -> str:
        """Return all that must stand beside the epsilon, short; what it covers comes apart.

        >>> terms = ("add_or_remove_one", "poisson", "example", "single_run", "one run")
        >>> PrivacyStatement(2.0, 1e-5, "rdp", *terms).terms()
        'delta=1e-05, unit=example, add_or_remove_one, sampling=poisson, rdp, accounting=single_run'
        """
        return (
            f"delta={self.delta:g}, unit={self.privacy_unit}, {self.neighboring_relation}, "
            f"sampling={self.sampling}, {self.accountant}, accounting={self.accounting}"
        )

    def one_line(self) -> str:
        """Return the statement as a sentence part; epsilon is rounded up in its last digit."""
        shown = shown_epsilon(self.epsilon)
        claim = " (no privacy guarantee)" if math.isinf(self.epsilon) else ""
        return (
            f"epsilon={shown}{claim} at delta={self.delta:g} ({self.accountant}, "
            f"{self.neighboring_relation}, {self.sampling} sampling, unit: {self.privacy_unit}, "
            f"accounting: {self.accounting}; released: {self.released})"
        )

"""A statement of privacy: an epsilon with everything it means nothing without, for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.terms import OF_ITS_PLAN, PrivacyTerms, shown_delta

_SMALL, _TINY = Decimal("1e-3"), Decimal("1e-5")  # below: three digits; with an exponent
_HUGE = Decimal("1e12")  # from here on too


def shown_epsilon(epsilon: float | None, *, is_left: bool = False) -> str:
    """Return an epsilon for people: rounded up, never to nearest; ``inf`` where there is none.

    Four decimals; where those would hide it, below 0.001, three significant digits. Rounded down,
    if it is what is left of one.

    >>> shown_epsilon(1.99991), shown_epsilon(2.0), shown_epsilon(None)
    ('2.0000', '2.0000', 'inf')
    >>> shown_epsilon(0.00012345), shown_epsilon(1e-9), shown_epsilon(0.0)
    ('0.000124', '1.00e-09', '0.0000')
    >>> shown_epsilon(1e308), shown_epsilon(0.99999, is_left=True)
    ('1.00e+308', '0.9999')
    """
    if epsilon is None or not math.isfinite(epsilon):
        return "inf"
    exact, rounding = Decimal(repr(float(epsilon))), ROUND_FLOOR if is_left else ROUND_CEILING
    if not 0 < exact < _SMALL and exact < _HUGE:
        return f"{exact.quantize(Decimal('1e-4'), rounding):f}"
    last = Decimal(1).scaleb(exact.adjusted() - 2)  # the third significant digit
    rounded = exact.quantize(last, rounding)
    return f"{rounded:f}" if _TINY <= rounded < _HUGE else f"{float(rounded):.2e}"


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement(PrivacyTerms):
    """An epsilon together with everything it means nothing without.

    Attributes:
        epsilon: The bound; infinite where there is none.
        released: What the bound is about.
    Raises:
        BadInputError: A field is missing or unknown.
    """

    epsilon: float
    released: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.epsilon, bool) or not self.epsilon >= 0:
            raise BadInputError(f"epsilon must be >= 0, got {self.epsilon!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields; an infinite epsilon is the word ``inf``: JSON has no such number."""
        epsilon = "inf" if math.isinf(self.epsilon) else self.epsilon
        return {"epsilon": epsilon, **self.columns(), "released": self.released}

    def to_record(self) -> dict[str, Any]:
        """Return the fields as printed records have them: an infinite epsilon is None."""
        epsilon = None if math.isinf(self.epsilon) else self.epsilon
        return {**self.to_json(), "epsilon": epsilon}

    def tags(self) -> dict[str, Any]:
        """Return the terms, and what the epsilon covers, as tags of a run."""
        return {**super().tags(), "dp.released": self.released}

    def one_line(self) -> str:
        """Return the statement as a sentence part; epsilon is rounded up in its last digit."""
        shown = shown_epsilon(self.epsilon)
        how = self.sampling if self.sampling == OF_ITS_PLAN else f"{self.sampling} sampling"
        claim = " (no privacy guarantee)" if math.isinf(self.epsilon) else ""
        return (
            f"epsilon={shown}{claim} at delta={shown_delta(self.delta)} ({self.accountant}, "
            f"{self.neighboring_relation}, {how}, unit: {self.privacy_unit}, "
            f"accounting: {self.accounting}; released: {self.released})"
        )

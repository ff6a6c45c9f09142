"""Budget of a trial or of a study."""

from __future__ import annotations

from dataclasses import dataclass

from dpsweep.foundation import validate
from dpsweep.foundation.errors import BadInputError

ADD_OR_REMOVE_ONE = "add_or_remove_one"


@dataclass(frozen=True)
class PrivacyBudget:
    """A target (epsilon, delta) and the neighboring relation it refers to.

    >>> PrivacyBudget(target_epsilon=2.0, delta=1e-5).neighboring_relation
    'add_or_remove_one'

    Attributes:
        target_epsilon: Largest epsilon allowed, > 0, finite.
        delta: Probability in (0, 1) that the epsilon bound may fail by; fixed for a study.
        neighboring_relation: Which data sets are neighbors. Only ``add_or_remove_one`` (two data
            sets differ by the presence of one record) is supported: accountants disagree about
            what a noise multiplier means under ``replace_one``.
    Raises:
        BadInputError: A value is out of range, or the relation is not supported.
    """

    target_epsilon: float
    delta: float
    neighboring_relation: str = ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        epsilon = validate.positive("target_epsilon", self.target_epsilon)
        object.__setattr__(self, "target_epsilon", epsilon)
        object.__setattr__(self, "delta", validate.in_unit_interval("delta", self.delta))
        if self.neighboring_relation != ADD_OR_REMOVE_ONE:
            raise BadInputError(
                f"neighboring_relation {self.neighboring_relation!r} is not supported",
                because="accounting, clipping and sampling here are those of add_or_remove_one",
                fix=f"neighboring_relation: {ADD_OR_REMOVE_ONE}",
            )

"""Privacy events: one class for each way of reading protected records, and plans made of them."""

from dpsweep.privacy.events.base import PrivacyEvent
from dpsweep.privacy.events.gaussian import Gaussian
from dpsweep.privacy.events.laplace import Laplace
from dpsweep.privacy.events.non_private import NonPrivate
from dpsweep.privacy.events.plan import (
    CHARGED_PARTS,
    NO_PLAN,
    PARTS,
    EventRun,
    Part,
    Plan,
    to_dp_event,
)
from dpsweep.privacy.events.poisson_gaussian import PoissonGaussian
from dpsweep.privacy.events.poisson_subset import PoissonSubset
from dpsweep.privacy.events.repeat_and_select import RepeatAndSelect
from dpsweep.privacy.events.table import EVENTS

__all__ = [
    "CHARGED_PARTS",
    "EVENTS",
    "NO_PLAN",
    "PARTS",
    "EventRun",
    "Gaussian",
    "Laplace",
    "NonPrivate",
    "Part",
    "Plan",
    "PoissonGaussian",
    "PoissonSubset",
    "PrivacyEvent",
    "RepeatAndSelect",
    "to_dp_event",
]

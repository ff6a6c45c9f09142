"""The table of privacy events: name in a file -> class."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry

_EVENTS = "dpsweep.privacy.events"

EVENTS = Registry(
    "event",
    {
        "gaussian": f"{_EVENTS}.gaussian:Gaussian",
        "laplace": f"{_EVENTS}.laplace:Laplace",
        "non_private": f"{_EVENTS}.non_private:NonPrivate",
        "poisson_gaussian": f"{_EVENTS}.poisson_gaussian:PoissonGaussian",
        "poisson_subset": f"{_EVENTS}.poisson_subset:PoissonSubset",
        "repeat_and_select": f"{_EVENTS}.repeat_and_select:RepeatAndSelect",
    },
    group="dpsweep.events",
    needs=("name", "from_json", "renyi"),
)

"""Training methods, each of which says its privacy plan before it runs."""

from __future__ import annotations

from dpsweep.registry import Registry

TRAINABLES = Registry(
    "method",
    {
        "dp_sgd": "dpsweep.trainables.dp_sgd:DPSGD",
        "non_private": "dpsweep.trainables.non_private:NonPrivate",
    },
    group="dpsweep.trainables",
)

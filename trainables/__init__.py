"""Training methods, each of which says its privacy plan before it runs."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry

TRAINABLES = Registry(
    "method",
    {
        "active_learning": "dpsweep.trainables.active_learning:ActiveLearning",
        "adamix": "dpsweep.trainables.adamix:AdaMix",
        "adamix_paragon": "dpsweep.trainables.adamix:AdaMixParagon",
        "bitfit": "dpsweep.trainables.bitfit:BiTFiT",
        "dp_sgd": "dpsweep.trainables.dp_sgd:DPSGD",
        "non_private": "dpsweep.trainables.non_private:NonPrivate",
        "scatternet": "dpsweep.trainables.scatternet:ScatterNet",
        "scatternet_non_private": "dpsweep.trainables.scatternet_non_private:ScatterNetNonPrivate",
        "sparse": "dpsweep.trainables.sparse:SparseFinetuning",
    },
    group="dpsweep.trainables",
)

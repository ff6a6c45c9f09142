"""Training methods, each of which says its privacy plan before it runs."""

from __future__ import annotations

from dpsweep.foundation.registry import Registry

_METHODS = "dpsweep.trainables.methods"

TRAINABLES = Registry(
    "method",
    {
        "active_learning": f"{_METHODS}.active_learning.active_learning:ActiveLearning",
        "adamix": f"{_METHODS}.adamix.adamix:AdaMix",
        "adamix_paragon": f"{_METHODS}.adamix.paragon:AdaMixParagon",
        "bitfit": f"{_METHODS}.bitfit.bitfit:BiTFiT",
        "bitfit_non_private": f"{_METHODS}.without_privacy:BiTFiTNonPrivate",
        "dope_sgd": f"{_METHODS}.dope_sgd:DOPESGD",
        "dp_sgd": f"{_METHODS}.dp_sgd:DPSGD",
        "least_squares": f"{_METHODS}.least_squares.least_squares:LeastSquares",
        "non_private": f"{_METHODS}.non_private:NonPrivate",
        "scatternet": f"{_METHODS}.scatternet.scatternet:ScatterNet",
        "scatternet_non_private": f"{_METHODS}.scatternet.non_private:ScatterNetNonPrivate",
        "sparse": f"{_METHODS}.sparse.sparse:SparseFinetuning",
        "sparse_non_private": f"{_METHODS}.without_privacy:SparseNonPrivate",
    },
    group="dpsweep.trainables",
    needs=("plan", "hyperparameters", "tasks"),
    check="dpsweep.trainables.outside:check_declared",
)

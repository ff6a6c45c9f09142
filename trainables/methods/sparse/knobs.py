"""Hyperparameters of sparse finetuning, and the kinds of parameters that they let train."""

from __future__ import annotations

from collections.abc import Mapping

from dpsweep.spec.space.hyperparameters import Hyperparameter

#: Kinds of parameters that train under each ``sparse.train`` (``networks.layers.KINDS``).
KINDS: Mapping[str, frozenset[str]] = {
    "cls": frozenset({"cls"}),
    "cls+norm": frozenset({"cls", "norm"}),
    "cls+conv": frozenset({"cls", "conv"}),
    "all": frozenset({"cls", "norm", "conv"}),
    "full": frozenset({"cls", "norm", "conv", "other"}),
    "scratch": frozenset({"cls", "norm", "conv", "other"}),
}
#: Those that choose weights of convolutions.
MASKED = ("cls+conv", "all")
#: Those that train the whole network.
WHOLE = ("full", "scratch")

SPARSE_HYPERPARAMETERS = (
    Hyperparameter(
        "sparse.train",
        "str",
        "all",
        "What trains: cls (the classifier), norm (weights and biases of normalisation layers), "
        "conv (the chosen convolution weights); all: these three; full: the whole network; "
        "scratch: the whole network from random weights, model.checkpoint is then ignored.",
        choices=tuple(KINDS),
    ),
    Hyperparameter(
        "sparse.density",
        "float",
        0.01,
        "Share of the convolution weights that train, those of largest magnitude in the initial "
        "network; no effect on epsilon, and no meaning without conv.",
        low=0,
        high=1,
        open_low=True,
    ),
    Hyperparameter(
        "sparse.scope",
        "str",
        "global",
        "Where they are the largest: over all convolutions together, or in each layer.",
        choices=("global", "layer"),
    ),
    Hyperparameter(
        "sparse.body_lr",
        "float",
        None,
        "Peak learning rate of everything but the classifier; where absent, optim.lr.",
        low=0,
        open_low=True,
        optional=True,
    ),
)

"""Networks whose forward pass draws no random numbers: no dropout, no stochastic depth.

A mask is drawn for the rows of a batch. Which row an example has depends on which others were
sampled, so taking one record away would give later examples other masks and other clipped
gradients: the sum would change by more than C, which is all that the noise is calibrated for.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from dpsweep.errors import ModelError

#: Where timm and transformers keep rates that they hand to functions.
_RATES = (
    "activation_dropout",
    "attention_dropout",
    "drop_path_rate",
    "drop_prob",
    "drop_rate",
    "dropout",
    "dropout_prob",
    "layerdrop",
)


def remove_dropout(model: nn.Module) -> None:
    """Set every rate of dropout and stochastic depth in a network to 0."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        for name in _RATES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def refuse_random(model: nn.Module, records: torch.Tensor) -> None:
    """Check that a forward pass, in the mode that the network is in, draws no random numbers.

    Args:
        model: Any network.
        records: What it takes, on its device; their values do not matter.
    Raises:
        ModelError: torch's generator has moved.
    """
    devices = [records.device] if records.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        before = _state(devices)
        model(records)
        if not torch.equal(before, _state(devices)):
            raise ModelError(
                "this network draws random numbers for each batch, as dropout does",
                because="the draws for one example would depend on which others are in the batch, "
                "and the noise does not cover that",
                fix="use a network without dropout or stochastic depth",
            )


def _state(devices: list[torch.device]) -> torch.Tensor:
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return torch.cat(states)

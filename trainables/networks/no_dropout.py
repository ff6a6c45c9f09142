"""Networks whose forward pass draws no random numbers: no dropout, no stochastic depth.

A mask is drawn for the rows of a batch. Which row an example has depends on which others were
sampled, so taking one record away would give later examples other masks and other clipped
gradients: the sum would change by more than C, which is all that the noise is calibrated for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from dpsweep.foundation.errors import ModelError

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
        ModelError: It calls an operator of torch that does.
    """
    devices = [records.device] if records.is_cuda else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices), _Draws() as draws:
        model(records)
    if draws.found:
        raise ModelError(
            f"this network draws random numbers for each batch, by {draws.found[0]}",
            because="as in dropout, the draws for one example would depend on which others are in "
            "the batch, and the noise does not cover that",
            fix="use a network without dropout or stochastic depth",
        )


class _Draws(TorchDispatchMode):
    """Notes the operators of this thread that draw; torch's generator belongs to all threads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not by torch's decorator, which would load its compiler."""
        return False

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            arguments = dict(zip((argument.name for argument in func._schema.arguments), args))
            arguments |= kwargs or {}
            rates = [
                arguments[name]
                for name in ("p", "dropout_p")
                if isinstance(arguments.get(name), float)
            ]
            # Attention is tagged as drawing, and draws where it has a rate of dropout.
            if any(rates) or not (rates or "attention" in func.name()):
                self.found.append(func.name())
        return func(*args, **(kwargs or {}))

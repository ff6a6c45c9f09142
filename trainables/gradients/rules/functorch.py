"""The rule for any layer: it is run again, example by example, and differentiated by functorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from dpsweep.foundation.errors import ModelError

#: From a layer's inputs and the gradient by its output to gradients per example, by what trains.
LayerRule = Callable[[list[torch.Tensor], torch.Tensor], Mapping[object, torch.Tensor]]


def without_fused_attention(module: nn.Module) -> None:
    """Let timm's attentions within a layer be plain: vmap has no rule for the fused kernel."""
    for child in module.modules():
        if hasattr(child, "fused_attn"):
            child.fused_attn = False  # type: ignore[assignment]


def by_functorch(name: str, module: nn.Module, own: Mapping[str, nn.Parameter]) -> LayerRule:
    """Return a rule that runs a layer again, example by example, for some of its parameters.

    Args:
        name: Path of the layer, for errors.
        module: The layer. Each of its inputs has one row for each example.
        own: The parameters that train, by their names in the layer.
    Raises:
        ModelError: It drops out at random within.
    """
    for child in module.modules():
        rate = getattr(child, "p" if isinstance(child, _DropoutNd) else "drop_prob", None)
        if isinstance(rate, float) and rate > 0:
            raise ModelError(
                f"layer {name or 'of the whole model'} ({type(module).__name__}) has parameters of "
                "its own and drops out at random within it",
                because="the gradient of an example would be of another mask than its output",
                fix="use a model without dropout there",
            )
    without_fused_attention(module)

    def rule(inputs: list[torch.Tensor], gradient: torch.Tensor) -> dict[object, torch.Tensor]:
        def inner(
            values: dict[str, torch.Tensor], example: tuple[torch.Tensor, ...], upstream: Any
        ) -> torch.Tensor:
            batch = tuple(value.unsqueeze(0) for value in example)
            output = torch.func.functional_call(module, values, batch)
            return (output.squeeze(0) * upstream).sum()

        values = {key: parameter.detach() for key, parameter in own.items()}
        with torch.enable_grad():
            each = torch.func.vmap(torch.func.grad(inner), in_dims=(None, 0, 0))
            samples = each(values, tuple(inputs), gradient)
        return {parameter: samples[key].detach() for key, parameter in own.items()}

    return rule

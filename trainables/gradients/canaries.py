"""Canaries' gradients: made large before clipping, and taken one by one, for audits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.gradients.per_example import GradientEngine

#: Most bytes that the gradients of all canaries may take.
MOST_BYTES = 4 * 2**30


class _Amplified(torch.autograd.Function):
    """The identity, whose gradient is a multiple of what comes back."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.factor, None


def amplify(model: nn.Module, factor: float) -> None:
    """Multiply the gradient that comes back from the outputs of a network, and nothing else.

    Each example's gradient becomes that of a loss ``factor`` times as large: one that must be
    clipped. Closed forms, which ask autograd for nothing, stay as they are.

    Args:
        model: Changed: a hook is added after those that are there.
        factor: Above 0.
    """

    def after(_: nn.Module, __: Any, outputs: Any) -> Any:
        is_open = isinstance(outputs, torch.Tensor) and outputs.requires_grad
        return _Amplified.apply(outputs, factor) if is_open else outputs

    model.register_forward_hook(after)


def clipped_gradients(
    engine: GradientEngine,
    x_source: torch.Tensor,
    y_source: torch.Tensor,
    rows: np.ndarray,
    max_grad_norm: float,
) -> torch.Tensor:
    """Return the clipped gradient of each row, as an engine would add it to a sum.

    Args:
        engine: As for a step.
        x_source: As for ``GradientEngine.clipped_gradient_sum``.
        y_source: As for ``GradientEngine.clipped_gradient_sum``.
        rows: int64 (m,).
        max_grad_norm: Bound C > 0.
    Returns:
        float32 (m, entries) on the CPU, the parameters in the order of the engine.
    Raises:
        BadInputError: They take more than ``MOST_BYTES``.
    """
    gradients = []
    for place in range(len(rows)):
        alone = rows[place : place + 1]
        sums = engine.clipped_gradient_sum(x_source, y_source, alone, max_grad_norm)
        gradients.append(torch.cat([part.reshape(-1) for part in sums]).float().cpu())
        size = gradients[0].nbytes
        if len(rows) * size > MOST_BYTES:
            raise BadInputError(
                f"gradients of {len(rows)} canaries with {gradients[0].numel()} entries need "
                f"{len(rows) * size / 2**30:.1f} GiB, and may take {MOST_BYTES / 2**30:.0f}",
                fix=f"--canaries {MOST_BYTES // size} or fewer",
            )
    return torch.stack(gradients)

"""What the engines that compute gradients layer by layer have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dpsweep.errors import ModelError

#: From norms (examples,) and C to the factor of each example, at most C / norm.
Factors = Callable[[torch.Tensor, float], torch.Tensor]
#: From outputs of a network and labels to the sum of the losses of the examples.
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class LayerUse(NamedTuple):
    """One call of a layer in a forward pass."""

    layer: nn.Module
    inputs: list[torch.Tensor]
    versions: list[int]
    output: torch.autograd.graph.GradientEdge


def cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of (batch, classes) logits, summed over the batch."""
    return nn.functional.cross_entropy(logits, labels, reduction="sum")


def chunks(
    x_source: torch.Tensor,
    y_source: torch.Tensor,
    rows: np.ndarray,
    size: int,
    device: torch.device,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a batch's records and labels on the device, at most ``size`` examples at once.

    Records in floating point become float32; integers, such as token ids, stay as they are.
    """
    index = torch.from_numpy(rows).to(x_source.device)
    for begin in range(0, len(index), size):
        chosen = index[begin : begin + size]
        x = x_source.index_select(0, chosen).to(device)
        y = y_source.index_select(0, chosen.to(y_source.device)).to(device)
        yield (x.to(torch.float32) if x.is_floating_point() else x), y


def refuse_overwritten(uses: Sequence[LayerUse]) -> None:
    """Check that the inputs of layers are still what they were when the layers used them.

    Raises:
        ModelError: One has been written to.
    """
    for use in uses:
        if [tensor._version for tensor in use.inputs] != use.versions:
            raise ModelError(
                f"a {type(use.layer).__name__} layer's input is overwritten after its use",
                fix="use a model without in-place operations on inputs of layers",
            )


def add_clipped(
    sums: Sequence[torch.Tensor],
    samples: Sequence[torch.Tensor],
    max_grad_norm: float,
    factors: Factors,
) -> None:
    """Add the clipped gradients of a chunk; an example whose gradient is not finite adds zero.

    Args:
        sums: Changed in place; as many entries each as a row of the sample of the same place.
        samples: Gradients per example, (examples, entries) each; their norm is that of all.
        max_grad_norm: Bound C > 0.
        factors: From norms and C to the factors.
    """
    norms = torch.stack([torch.linalg.vector_norm(s, dim=1) for s in samples], dim=1)
    norms = torch.linalg.vector_norm(norms, dim=1)
    broken = ~norms.isfinite()
    has_broken = bool(broken.any())
    # A factor of zero does not clear a gradient that is not finite: both are set to zero.
    scales = factors(norms, max_grad_norm).masked_fill(broken, 0.0)
    for total, sample in zip(sums, samples):
        if has_broken:
            sample = sample.masked_fill(broken[:, None], 0.0)
        total += (scales @ sample).view_as(total)

"""What the engines that compute gradients layer by layer have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dpsweep.errors import ModelError
from dpsweep.trainables.linear_head import exact_factors, row_norms
from dpsweep.trainables.weight_products import WeightProduct

#: Most that the rounding of products may add to what an example adds, in parts of C.
TOLERANCE = 1e-4

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


def random_records(
    x_source: torch.Tensor, y_source: torch.Tensor, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return three random records and labels to check an engine on; always the same ones.

    Nothing is read from the sources but shapes and types.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (3, *x_source.shape[1:])
    if x_source.is_floating_point():
        x = torch.randn(shape, generator=generator).to(device)
    else:
        x = torch.randint(0, 2, shape, generator=generator).to(device, x_source.dtype)
    return x, torch.zeros((3, *y_source.shape[1:]), dtype=y_source.dtype, device=device)


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


def zero_sums(like: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return zeros to add chunks up in, one tensor for each, in float64.

    In float32 every addition to a sum of thousands of examples rounds by a part of their sum. One
    example less moves all chunks behind it, which then round otherwise, by more than the noise
    allows for.

    Not covered: sums within a chunk are float32, and round otherwise when examples move from one to
    the next. No bound below C is proven for that; it stays below 1e-3 C for 20,000 examples whose
    gradients all point the same way (``tests/unit/trainables/test_large_sums.py``).
    """
    return [torch.zeros(t.shape, dtype=torch.float64, device=t.device) for t in like]


def weighted_sum(sample: torch.Tensor | WeightProduct, factors: torch.Tensor) -> torch.Tensor:
    """Return the sum of gradients per example times ``factors`` (examples,), flat."""
    if isinstance(sample, WeightProduct):
        return sample.weighted_sum(factors).flatten()
    return factors @ sample


def add_clipped(
    sums: Sequence[torch.Tensor],
    samples: Sequence[torch.Tensor | WeightProduct],
    max_grad_norm: float,
    factors: Factors,
) -> None:
    """Add the clipped gradients of a chunk; an example whose gradient is not finite adds zero.

    Args:
        sums: Changed in place, float64 (``zero_sums``); as many entries each as a row of the
            sample of the same place.
        samples: Gradients per example, (examples, entries) each or as products; the norm is that
            of all together.
        max_grad_norm: Bound C > 0.
        factors: From norms and C to the factors.
    """
    parts, rounding = [], []
    for sample in samples:
        if isinstance(sample, WeightProduct):
            norm, size = sample.norms()
            rounding.append(size)
        else:
            norm = row_norms(sample)
        parts.append(norm)
    norms = torch.linalg.vector_norm(torch.stack(parts, dim=1), dim=1)
    broken = ~norms.isfinite()
    has_broken = bool(broken.any())
    scales = factors(norms, max_grad_norm)
    if rounding:
        most = norms + torch.stack(rounding, dim=1).sum(dim=1)
        scales = exact_factors(scales.minimum((1 + TOLERANCE) * max_grad_norm / most), norms)
    # A factor of zero does not clear a gradient that is not finite: both are set to zero.
    scales = scales.masked_fill(broken, 0.0)
    for total, sample in zip(sums, samples):
        if has_broken and isinstance(sample, torch.Tensor):
            sample = sample.masked_fill(broken[:, None], 0.0)
        total += weighted_sum(sample, scales).view_as(total)

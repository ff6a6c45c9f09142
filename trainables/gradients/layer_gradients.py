"""What the engines that compute gradients layer by layer have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.gradients.clipping import TOLERANCE, Factors, exact_factors, row_norms
from dpsweep.trainables.gradients.sums import add_rows, filled
from dpsweep.trainables.gradients.weight_products import MOST_CANCELLED, MOST_TERMS, WeightProduct

#: Most that rounding lets one example add beyond C: of its norm, of its factor, of products.
EXAMPLE_TOLERANCE = 5e-5
#: What of it the rounding of products may take up.
_PRODUCT_TOLERANCE = 1.5e-5


class LayerUse(NamedTuple):
    """One call of a layer in a forward pass."""

    layer: nn.Module
    inputs: list[torch.Tensor]
    versions: list[int]
    output: torch.autograd.graph.GradientEdge


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


def full_chunks(
    x_source: torch.Tensor,
    y_source: torch.Tensor,
    rows: np.ndarray,
    size: int,
    device: torch.device,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Yield the same, with zeros after the last examples so that all chunks have ``size`` rows.

    Kernels round otherwise for other numbers of rows, and an example's gradient must not depend on
    how many share its chunk. The third value is how many rows are examples.
    """
    for x, y in chunks(x_source, y_source, rows, size, device):
        yield filled(x, size), filled(y, size), len(x)


def noise_margin(num_examples: int) -> float:
    """Return the most that an example moves a sum beyond C by rounding, in parts of C.

    That of the example itself, and that of the sums of two batches of at most ``num_examples`` each
    (``sums``, ``weight_products``). Nothing of it depends on ``batch.physical``.

    >>> noise_margin(400_000), round(noise_margin(1_000_000), 6)
    (0.0001, 0.000301)
    """
    roundings = num_examples + MOST_TERMS * MOST_CANCELLED
    return max(TOLERANCE, EXAMPLE_TOLERANCE + 2.0**-52 * num_examples * roundings)


def add_weighted(
    total: torch.Tensor, sample: torch.Tensor | WeightProduct, factors: torch.Tensor
) -> None:
    """Add gradients per example times ``factors`` (examples,) to a float64 total, in place."""
    if isinstance(sample, WeightProduct):
        sample.add_to(total, factors)
    else:
        add_rows(total, sample, factors)


def add_clipped(
    sums: Sequence[torch.Tensor],
    samples: Sequence[torch.Tensor | WeightProduct],
    max_grad_norm: float,
    factors: Factors,
    count: int | None = None,
) -> None:
    """Add the clipped gradients of a chunk; an example whose gradient is not finite adds zero.

    Args:
        sums: Changed in place, float64 (``zero_sums``); as many entries each as a row of the
            sample of the same place.
        samples: Gradients per example, (examples, entries) each or as products; the norm is that
            of all together.
        max_grad_norm: Bound C > 0.
        factors: From norms and C to the factors.
        count: How many of the rows are examples, the first ones; None: all.
    """
    parts, rounding = [], []
    for sample in samples:
        if isinstance(sample, WeightProduct):
            norm, size = sample.norms()
            rounding.append(size)
        else:
            norm = row_norms(sample)
        parts.append(norm)
    together = torch.linalg.vector_norm(torch.stack(parts, dim=1), dim=1, dtype=torch.float64)
    norms = together.to(parts[0].dtype)
    broken = ~norms.isfinite()
    has_broken = bool(broken.any())
    scales = factors(norms, max_grad_norm)
    if rounding:
        most = norms + torch.stack(rounding, dim=1).sum(dim=1)
        scales = exact_factors(
            scales.minimum((1 + _PRODUCT_TOLERANCE) * max_grad_norm / most), norms
        )
    # A factor of zero does not clear a gradient that is not finite: both are set to zero.
    scales = scales.masked_fill(broken, 0.0)
    if count is not None:
        scales[count:] = 0.0
    for total, sample in zip(sums, samples):
        if has_broken and isinstance(sample, torch.Tensor):
            sample = sample.masked_fill(broken[:, None], 0.0)
        add_weighted(total, sample, scales)

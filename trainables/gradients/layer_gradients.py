"""Gradients layer by layer: the uses of layers, chunks of records, clipped sums of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.devices.numerics import may_skip, moved, widened
from dpsweep.trainables.devices.places import filled
from dpsweep.trainables.gradients.clipping import (
    PRODUCT_TOLERANCE,
    Factors,
    exact_factors,
    row_norms,
)
from dpsweep.trainables.gradients.sums import add_rows
from dpsweep.trainables.gradients.weight_products import WeightProduct


class LayerUse(NamedTuple):
    """One call of a layer in a forward pass, whose output has so many rows."""

    layer: nn.Module
    inputs: list[torch.Tensor]
    versions: list[int]
    output: torch.autograd.graph.GradientEdge
    num_rows: int

    def widened(self, gradient: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the inputs and the gradient by the output, in float32 where they were rounded."""
        return [widened(tensor) for tensor in self.inputs], widened(gradient)


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
    index = torch.from_numpy(rows)
    by_x, by_y = moved(index, x_source.device), moved(index, y_source.device)
    for begin in range(0, len(index), size):
        x = moved(x_source.index_select(0, by_x[begin : begin + size]), device)
        y = moved(y_source.index_select(0, by_y[begin : begin + size]), device)
        yield (x.to(torch.float32) if x.is_floating_point() else x), y


def use_of(
    layer: nn.Module, inputs: list[torch.Tensor], versions: list[int], output: torch.Tensor
) -> LayerUse:
    """Return a call of a layer.

    Args:
        layer: The layer.
        inputs: What it was called with, without their gradients.
        versions: Of these, before it was.
        output: What it returned.
    """
    # The edge stays that of this layer, also if the model writes to the output later.
    edge = torch.autograd.graph.get_gradient_edge(output)
    return LayerUse(layer, inputs, versions, edge, len(output) if output.dim() else 0)


class Tried:
    """A forward pass that no gradient is asked of, so that nothing is kept for one.

    Args:
        count: Number of examples.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._suited: set[nn.Parameter] = set()  # of layers whose output has a row for each

    def note(self, layer: nn.Module, output: torch.Tensor) -> torch.Tensor:
        """Note a call of a layer; return its output without the graph, which goes with it."""
        kind = output.dtype
        may_follow = torch.is_grad_enabled() and (kind.is_floating_point or kind.is_complex)
        if may_follow and output.dim() and len(output) == self._count:
            self._suited.update(layer.parameters())
        return output.detach()

    def refuse_others(self, trained: Iterable[nn.Parameter]) -> None:
        """Check that each parameter that trains is one of a layer with a row for each example.

        Raises:
            ModelError: One is not.
        """
        if not self._suited.issuperset(trained):
            raise no_gradient()


def no_gradient() -> ModelError:
    """Return the error for a layer whose gradients by example nobody can say."""
    return ModelError(
        "a layer of this model has no gradient per example",
        because="it is unused or cut off from the loss, or its input is not one row per example",
        fix="use another model; windowed attention cannot be trained this way",
    )


def flat_rows(sample: torch.Tensor) -> torch.Tensor:
    """Return gradients (examples, *shape) as (examples, entries): one entry for a single number."""
    return sample.reshape(len(sample), -1)


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


class Views(Protocol):
    """Views of the records of a chunk, each a function of its own record (``extras.views``)."""

    multiplicity: int

    def __call__(self, records: torch.Tensor, /) -> Iterable[torch.Tensor]:
        """Yield as many views as ``multiplicity`` says, each in the shape of the records."""
        ...


def mean_over_views(
    per_example: Callable[[torch.Tensor], Sequence[torch.Tensor | WeightProduct]],
    records: torch.Tensor,
    views: Views,
) -> list[torch.Tensor]:
    """Return the mean over views of each example's gradients, float32 (examples, entries) each.

    Products are formed: norm and sum are both of the same mean. One view at a time is held beside
    the sum.

    Args:
        per_example: From records to their gradients, for ``add_clipped``.
        records: The chunk.
        views: What they are seen as.
    """
    total: list[torch.Tensor] = []
    for view in views(records):
        samples = [s.each() if isinstance(s, WeightProduct) else s for s in per_example(view)]
        if total:
            for before, sample in zip(total, samples):
                before.add_(sample)
        else:
            total = [sample.clone() for sample in samples]
    return [sample.div_(views.multiplicity) for sample in total]


def joint_norms(
    samples: Sequence[torch.Tensor | WeightProduct],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the norm of each example's gradient, and how far off its sum may be, if by products.

    Args:
        samples: Gradients per example, (examples, entries) each or as products; the norm is that
            of all together.
    Returns:
        Both float32 (examples,).
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
    return norms, torch.stack(rounding, dim=1).sum(dim=1) if rounding else None


class ExampleSamples(NamedTuple):
    """The gradients of a few examples by all that trains, for ``check_gradients``."""

    samples: Sequence[torch.Tensor | WeightProduct]

    def norms(self) -> torch.Tensor:
        """Return the norm of each example's gradient, float32 (examples,)."""
        return joint_norms(self.samples)[0]

    @property
    def consists_of(self) -> list[torch.Tensor]:
        """See ``check.ExampleGradients``."""
        parts: list[torch.Tensor] = []
        for sample in self.samples:
            if isinstance(sample, WeightProduct):
                parts += sample.factors
            else:
                parts.append(sample)
        return parts

    def add_to(self, sums: list[torch.Tensor], factors: torch.Tensor) -> None:
        """Add the examples times their factors to the sums, float64."""
        for total, sample in zip(sums, self.samples):
            add_weighted(total, sample, factors)


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
    norms, rounding = joint_norms(samples)
    broken = ~norms.isfinite()
    is_whole = may_skip(broken)
    if count is not None:
        norms[count:] = math.inf
    scales = factors(norms, max_grad_norm)
    if rounding is not None:
        most = norms + rounding
        scales = exact_factors(
            scales.minimum((1 + PRODUCT_TOLERANCE) * max_grad_norm / most), norms
        )
    # A factor of zero does not clear a gradient that is not finite: both are set to zero.
    scales = scales.masked_fill(broken, 0.0)
    if count is not None:
        scales[count:] = 0.0
    for total, sample in zip(sums, samples):
        if isinstance(sample, torch.Tensor) and not is_whole:
            sample = sample.masked_fill(broken[:, None], 0.0)
        add_weighted(total, sample, scales)

"""Sums of gradients that are clipped around a public one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from dpsweep.trainables.data.losses import Loss
from dpsweep.trainables.devices.numerics import full_float32
from dpsweep.trainables.gradients.clipping import Factors
from dpsweep.trainables.gradients.layer_gradients import Views, add_clipped, chunks, full_chunks
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.gradients.sums import chunk_size, zero_sums


class CentredEngine(OpacusEngine):
    """Sums of ``clip(g_i - c, C)``: gradients of examples less a public vector c, clipped to C.

    Gradients per example are held in memory, as the norm of a difference does not follow from
    norms: ``batch.physical`` times the number of trained weights, in float32.

    Guarantees:
        Each example adds a function of itself, the weights and c, of norm at most C, so that one
        example more or less moves the sum by at most C (``sums`` has what rounding adds). An
        example outside of the batch adds zero and not ``clip(-c, C)``. That c is public is up to
        whoever sets it.

    Attributes:
        centre: c, one tensor for each trained parameter; None stands for zero.
    """

    centre: Sequence[torch.Tensor] | None = None

    @full_float32()
    def clipped_gradient_sum(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray, max_grad_norm: float
    ) -> list[torch.Tensor]:
        """See ``GradientEngine``; what is clipped and added up are the differences."""
        if self._checked_shape != x_source.shape[1:]:
            self._check(x_source, y_source)
            self._checked_shape = x_source.shape[1:]
        sums = zero_sums(self._parameters)
        for x, y, count in full_chunks(x_source, y_source, rows, self._physical, self._device):
            each = [
                sample if isinstance(sample, torch.Tensor) else sample.each().flatten(1)
                for sample in self._samples(x, y)
            ]
            if self.centre is not None:
                each = [sample - c.flatten() for sample, c in zip(each, self.centre)]
            add_clipped(sums, each, max_grad_norm, self._factors, count)
        return sums

    @full_float32()
    def mean_gradient(
        self, x_source: torch.Tensor, y_source: torch.Tensor, rows: np.ndarray
    ) -> list[torch.Tensor]:
        """Return the mean gradient of public records, neither clipped nor noised, float32.

        Args:
            x_source: As for ``clipped_gradient_sum``; public.
            y_source: As for ``clipped_gradient_sum``.
            rows: Which of them, int64 (m,), at least one.
        """
        sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        for x, y in chunks(x_source, y_source, rows, self._physical, self._device):
            loss = self._loss(self._forward(x), y)
            for total, gradient in zip(sums, torch.autograd.grad(loss, self._parameters)):
                total.add_(gradient)
        return [total.div_(len(rows)) for total in sums]


def make_centred_engine(
    model: nn.Module,
    physical_batch: int,
    *,
    loss: Loss,
    factors: Factors,
    expected_batch: float,
    views: Views | None = None,
    precision: str = "float32",
) -> CentredEngine:
    """Return the engine of a network, with no centre yet.

    Args:
        model: As for ``make_engine``.
        physical_batch: As for ``make_engine``.
        loss: As for ``make_engine``.
        factors: As for ``make_engine``, of the norms of differences.
        expected_batch: As for ``make_engine``.
        views: As for ``make_engine``; c is of the records as they are.
        precision: As for ``make_engine``.
    """
    size = chunk_size(expected_batch, physical_batch, next(model.parameters()).device)
    return CentredEngine(model, size, loss=loss, factors=factors, views=views, precision=precision)

"""Full-batch gradients of softmax regression in closed form, adaptive clipping, public subspaces.

The parts of Noisy-GD and AdaMix (Golatkar et al. 2022, https://arxiv.org/abs/2203.11481, algorithms
1 and 2). Weights and gradients have the layout (classes, features); no per-example gradient is ever
formed, and nothing here is larger than the features themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from dpsweep.trainables.devices.numerics import may_skip
from dpsweep.trainables.devices.places import filled
from dpsweep.trainables.gradients.clipping import (
    clip_factors,
    norm64,
    product_of_norms,
    row_norms,
)
from dpsweep.trainables.gradients.linear_head import cuda_block
from dpsweep.trainables.gradients.sums import add_product

#: Rows of a block: what is computed of it stays in the cache until its last use.
CPU_BLOCK = 256
#: Clipping norms are never smaller: 0 would make the noise 0 and the clip factor 0 / 0.
LEAST_CLIP = 1e-8


class HeadRecords:
    """Records whose gradients with respect to a linear softmax head are wanted, step after step.

    The gradient of one record is g_i = r_i x_i^T with r_i = softmax(W x_i) - onehot(y_i), so
    |g_i| = |r_i| |x_i|. The norms of the records never change and are computed once.

    Args:
        inputs: Features, (records, features), float32 or half precision; widened block by block
            before anything is computed, and never written to.
        labels: Classes, int64 (records,).
        device: Where the head is: ``cpu`` or ``cuda``.
    """

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor, *, device: str) -> None:
        self._x = inputs.flatten(1)
        self._y = labels.to(device)
        self._device = device
        is_cuda, features = device.startswith("cuda"), self._x.shape[1]
        self._block = cuda_block(features) if is_cuda else CPU_BLOCK
        self._norms = torch.empty(len(labels), device=device)
        self._broken: torch.Tensor | None = None
        for rows, x in self._blocks():
            self._norms[rows] = row_norms(x)[: len(self._y[rows])]
        broken = ~self._norms.isfinite()
        if bool(broken.any()):
            self._broken = broken

    def __len__(self) -> int:
        return len(self._y)

    @property
    def labels(self) -> torch.Tensor:
        """Classes, int64 (records,), as private as the records."""
        return self._y

    def chosen(self, rows: torch.Tensor) -> HeadRecords:
        """Return some of the records, by their rows, int64."""
        x, y = self._x[rows.to(self._x.device)], self._y[rows.to(self._y.device)]
        return HeadRecords(x, y, device=self._device)

    def alone(self) -> Iterator[HeadRecords]:
        """Yield each record by itself."""
        for i in range(len(self)):
            yield type(self)(self._x[i : i + 1], self._y[i : i + 1], device=self._device)

    def _blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield rows with their features on the device; broken ones are zero.

        Every block has the same size, the last one with zeros after its records, so that how a
        record's numbers are rounded does not depend on how many there are.
        """
        for begin in range(0, len(self), self._block):
            rows = slice(begin, begin + self._block)
            x = self._x[rows].to(self._device, torch.float32)
            if self._broken is not None:
                # A clip factor of zero does not clear what is not finite.
                x = x.masked_fill(self._broken[rows, None], 0.0)
            yield rows, filled(x, self._block)

    @torch.no_grad()
    def gradient_sum(
        self, weight: torch.Tensor, max_grad_norm: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the records' gradients, and the norm of each before clipping.

        Guarantees:
            With a clipping norm, adding or removing a record changes the sum by at most that in
            L2 norm, and ``clipping.noise_margin`` of it, whatever the records are; one whose
            features or gradient are not finite adds zero. The norms are as private as the records.

        Args:
            weight: Head, float32 (classes, features), on the device.
            max_grad_norm: Bound C on the norm of one record's gradient, at least ``LEAST_CLIP``:
                squares of entries below 1e-20 vanish. None: no clipping.
        Returns:
            (sum, float64 (classes, features): noise is to be added before it is rounded; norms,
            float32 (records,), 0 where a gradient is not finite).
        """
        total = torch.zeros_like(weight, dtype=torch.float64)
        norms = torch.empty_like(self._norms)
        for rows, x in self._blocks():
            residual = torch.softmax(weight @ x.T, dim=0)
            target = filled(self._y[rows], self._block)[None]
            residual.scatter_add_(0, target, residual.new_full(target.shape, -1.0))
            size = norm64(residual, 0)
            # What comes after the records has norm 0, as its features have.
            norm = product_of_norms(size, filled(self._norms[rows], self._block))
            broken = ~norm.isfinite()
            if not may_skip(broken):
                residual.masked_fill_(broken, 0.0)
                norm.masked_fill_(broken, 0.0)
            if max_grad_norm is not None:
                residual *= clip_factors(norm, max_grad_norm)
            if max_grad_norm is None:
                total += residual @ x  # nothing to protect
            else:
                add_product(total, residual, x)
            norms[rows] = norm[: len(norms[rows])]
        return total, norms

    @torch.no_grad()
    def losses(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of every record, nats, float32 (records,); private like them.

        Infinite where it is not a number (weights that have diverged).
        """
        by_record = torch.empty_like(self._norms)
        for rows, x in self._blocks():
            logits = x @ weight.T
            target = filled(self._y[rows], self._block)
            losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")
            by_record[rows] = losses[: len(by_record[rows])]
        return by_record.masked_fill_(by_record.isnan(), torch.inf)


def percentile_clip(
    norms: torch.Tensor, percentile: float, cap: float | None = None, factor: float = 1.0
) -> float:
    """Return the clipping norm that public gradients suggest (Golatkar et al. 2022, section 3.2).

    >>> round(percentile_clip(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 50.0), 4)
    3.0
    >>> percentile_clip(torch.tensor([1.0, 2.0]), 90.0, cap=0.5)
    0.5

    Args:
        norms: Norms of the public per-example gradients, (records,), at least one.
        percentile: In [0, 100]; between two norms it is interpolated.
        cap: Upper bound on the result.
        factor: What the percentile is multiplied by.
    Returns:
        A finite number, at least ``LEAST_CLIP``.
    """
    norm = factor * float(torch.quantile(norms.double(), percentile / 100))
    return max(norm if cap is None else min(norm, cap), LEAST_CLIP)


def mean_gradient_clip(
    total: torch.Tensor, count: int, factor: float = 1.0, cap: float | None = None
) -> float:
    """Return the clipping norm of Wang & Zhou (2020): the norm of the mean public gradient.

    Golatkar et al. (2022, https://arxiv.org/abs/2203.11481, section 3.2) describe it so.

    >>> mean_gradient_clip(torch.tensor([[3.0, 4.0]]), 2)
    2.5

    Args:
        total: Sum of the public gradients.
        count: Number of public records, at least 1.
        factor: What the norm is multiplied by.
        cap: Upper bound on the result.
    Returns:
        A finite number, at least ``LEAST_CLIP``; the cap, or 1, where the weights have diverged.
    """
    norm = factor * float(torch.linalg.vector_norm(total.double())) / count
    if not math.isfinite(norm):
        return 1.0 if cap is None else max(cap, LEAST_CLIP)
    return max(norm if cap is None else min(norm, cap), LEAST_CLIP)


class PublicSubspace:
    """The subspace onto which gradients are projected, anew for each public gradient.

    Golatkar et al. (2022, algorithm 2) keep the top left singular directions of the total public
    gradient G (features x classes) in a full SVD. G has a rank of at most classes - 1, so all
    further directions kept there are an arbitrary completion, and what matters is which few are
    dropped. With D = features - round(fraction features) of them to drop, one Householder QR of
    [G', R], G' being G without its last column (minus the sum of the others) and R a fixed public
    Gaussian (features x D) matrix, yields an orthonormal basis whose first classes - 1 columns span
    G and whose last D columns V are orthogonal to them: P = I - V V^T keeps G and has rank
    features - D. The cost is that of a QR of features x (classes - 1 + D), and of two thin
    products. Where fewer directions are kept than G has, they are its top singular directions
    themselves: P = U U^T.

    Guarantees:
        A function of public gradients, a public seed and the weights. Projecting a noisy sum is
        post-processing of it, and P N(0, s^2 I) is noise of scale s within the subspace: the same
        distribution as drawing it there and lifting it back.

    Args:
        num_features: Features d of a record.
        fraction: Share of the d directions that is kept; at least one is.
        seed: Public.
        device: Where gradients are.
    """

    def __init__(self, num_features: int, fraction: float, *, seed: int, device: str) -> None:
        self.rank = max(1, round(fraction * num_features))
        generator = torch.Generator().manual_seed(seed)
        shape = (num_features, num_features - self.rank)
        self._random = torch.randn(shape, generator=generator).to(device)

    @torch.no_grad()
    def project(self, gradient: torch.Tensor, public_gradient: torch.Tensor) -> torch.Tensor:
        """Return ``gradient`` (classes, features) in the subspace of ``public_gradient``."""
        num_classes, num_features = gradient.shape
        if self.rank == num_features:
            return gradient
        public_gradient = public_gradient.to(gradient)
        if not bool(public_gradient.isfinite().all()):
            return gradient  # the weights have diverged: there is no direction to speak of
        if self.rank < num_classes - 1:
            basis = torch.linalg.svd(public_gradient.T, full_matrices=False).U[:, : self.rank]
            return gradient @ basis @ basis.T
        basis = torch.linalg.qr(torch.cat([public_gradient[:-1].T, self._random], dim=1)).Q
        dropped = basis[:, num_classes - 1 :]
        return gradient - gradient @ dropped @ dropped.T

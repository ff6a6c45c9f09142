"""One step of training, made alike by every benchmark: without privacy, ours, and Opacus' two.

A step is: gather a batch, gradient (clipped and noised, except without privacy), optimizer.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import timm
import torch
from torch import nn

from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.gradients.per_example import GradientEngine

NOISE_MULTIPLIER = 1.0
MAX_GRAD_NORM = 0.1
Step = Callable[[], None]


@dataclass
class Batches:
    """Records on a device, and batches of them.

    Attributes:
        x: Inputs.
        y: Labels.
        batch: Records of a batch; the expected number where batches are Poisson samples.
        device: ``cpu`` or ``cuda``.
        is_poisson: Whether each record enters a batch by a draw of its own.
    """

    x: torch.Tensor
    y: torch.Tensor
    batch: int
    device: str
    is_poisson: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def rows(self) -> np.ndarray:
        """Return the rows of the next batch."""
        if self.is_poisson:
            return np.flatnonzero(self.rng.random(len(self.y)) < self.batch / len(self.y))
        return self.rng.choice(len(self.y), self.batch, replace=False)

    def gather(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next batch."""
        rows = torch.from_numpy(self.rows()).to(self.device)
        return self.x[rows], self.y[rows]


def plain_step(model: nn.Module, data: Batches, optimizer: torch.optim.Optimizer) -> Step:
    """Return a step without privacy."""

    def step() -> None:
        x, y = data.gather()
        optimizer.zero_grad()
        (nn.functional.cross_entropy(model(x), y, reduction="sum") / data.batch).backward()
        optimizer.step()

    return step


def engine_step(
    model: nn.Module,
    data: Batches,
    optimizer: torch.optim.Optimizer,
    engine: GradientEngine,
    heads: int = 1,
) -> Step:
    """Return a step of ours, of one model or of heads that share their batches.

    The check against autograd, once per shape, is no part of it.
    """
    engine.clipped_gradient_sum(data.x, data.y, data.rows()[:0], MAX_GRAD_NORM)
    noise, scale = SecretNoise(data.device), NOISE_MULTIPLIER * MAX_GRAD_NORM * heads**0.5
    trainable = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        sums = engine.clipped_gradient_sum(data.x, data.y, data.rows(), MAX_GRAD_NORM)
        for parameter, total in zip(trainable, sums):
            parameter.grad = total.add_(noise.like(total, scale)).div_(data.batch).float()
        optimizer.step()

    return step


def after_an_epoch(engine: GradientEngine, data: Batches) -> GradientEngine:
    """Return an engine that has seen every record, as in all but the first steps of a trial."""
    for rows in (np.arange(len(data.x)), np.arange(0)):
        engine.clipped_gradient_sum(data.x, data.y, rows, MAX_GRAD_NORM)
    return engine


def opacus_step(
    model: nn.Module, data: Batches, optimizer: torch.optim.Optimizer, *, ghost: bool
) -> Step:
    """Return a step of Opacus: of its hooks, or of ghost clipping, which runs backward twice."""
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    options = {
        "noise_multiplier": NOISE_MULTIPLIER,
        "max_grad_norm": MAX_GRAD_NORM,
        "expected_batch_size": data.batch,
    }
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=MAX_GRAD_NORM)
        private = DPOptimizerFastGradientClipping(optimizer, **options)
        criterion = DPLossFastGradientClipping(
            wrapped, private, nn.CrossEntropyLoss(reduction="mean"), loss_reduction="mean"
        )
    else:
        wrapped = GradSampleModule(model)
        private = DPOptimizer(optimizer, **options)
        criterion = nn.CrossEntropyLoss()

    def step() -> None:
        x, y = data.gather()
        private.zero_grad()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing when")
            criterion(wrapped(x), y).backward()
        private.step()

    return step


def _basic_block(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """timm's BasicBlock, as ResNet-18 uses it, without in-place operations."""
    shortcut = x if self.downsample is None else self.downsample(x)
    x = self.act1(self.bn1(self.conv1(x)))
    return self.act2(self.bn2(self.conv2(x)) + shortcut)


def suit_opacus(model: nn.Module) -> None:
    """Rebuild a network of timm's as Opacus' hooks want it: torch's norms, sums out of place."""
    for module in list(model.modules()):
        if getattr(module, "inplace", False):
            module.inplace = False
        if isinstance(module, timm.models.resnet.BasicBlock):
            module.forward = types.MethodType(_basic_block, module)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                new = nn.GroupNorm(child.num_groups, child.num_channels, eps=child.eps)
            elif isinstance(child, nn.LayerNorm):
                new = nn.LayerNorm(child.normalized_shape, eps=child.eps)
            else:
                continue
            for parameter, old in zip(new.parameters(), child.parameters()):
                parameter.data = old.data
                parameter.requires_grad_(old.requires_grad)
            setattr(module, name, new)

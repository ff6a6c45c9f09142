"""Linear heads, fronts before them and records, small and always the same."""

from __future__ import annotations

import torch
from torch import nn

from dpsweep.trainables.methods.scatternet.normalize import build_front, set_statistic


def front_of(shape: tuple[int, ...]) -> nn.Module:
    front = build_front(shape)
    generator = torch.Generator().manual_seed(5)
    mean = torch.randn(shape[0], generator=generator).double()
    set_statistic(front, 0, mean, min_variance=1e-5)
    spread = torch.rand(shape[0], generator=generator).double() + 0.3
    set_statistic(front, 1, mean.square() + spread, min_variance=1e-5)
    return front


def records(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, *shape, generator=generator).to(dtype)
    return x, torch.randint(0, 4, (300,), generator=generator)


def heads_of(count: int, features: int) -> list[nn.Linear]:
    torch.manual_seed(1)
    heads = [nn.Linear(features, 4) for _ in range(count)]
    for head in heads:
        nn.init.normal_(head.weight, std=0.3)
    return heads

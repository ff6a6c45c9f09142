"""No network that is trained privately draws random numbers: a mask would depend on the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import OpacusEngine, make_engine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.no_dropout import refuse_random, remove_dropout

C = 0.1
#: timm gives these dropout, dropout by a function, and stochastic depth by default.
DRAWING = ("rexnet_100", "ghostnet_100", "fasternet_t1")


class _Hidden(nn.Module):
    """Drops out by a function, at a rate that no attribute tells."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.1, training=self.training)


def with_dropout(layer: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), layer, nn.Linear(8, 5))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.AlphaDropout(0.1), _Hidden()])
@pytest.mark.parametrize(
    "engine",
    [BiasEngine, OpacusEngine, lambda model, size: SparseEngine(model, [], size)],
    ids=["bias", "opacus", "sparse"],
)
def test_every_engine_refuses_a_network_that_draws(
    engine: Callable[[nn.Module, int], Any], layer: nn.Module
) -> None:
    model = with_dropout(layer)
    if engine is BiasEngine:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
    x, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    state = torch.get_rng_state()
    with pytest.raises(ModelError, match="draws random numbers"):
        engine(model, 4).clipped_gradient_sum(x, y, np.arange(4), C)
    assert torch.equal(torch.get_rng_state(), state)


def test_attention_draws_where_it_has_a_rate() -> None:
    class Attention(nn.Module):
        rate = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attend = nn.functional.scaled_dot_product_attention
            return attend(x, x, x, dropout_p=self.rate)

    model = Attention()
    refuse_random(model, torch.randn(2, 1, 4, 8))
    model.rate = 0.1
    with pytest.raises(ModelError, match="draws random numbers"):
        refuse_random(model, torch.randn(2, 1, 4, 8))


def test_draws_of_other_threads_do_not_count() -> None:
    """Eight trials at once may share a process, and torch's generator with it."""
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.is_set():
            torch.rand(10)

    other = threading.Thread(target=draw)
    other.start()
    try:
        for _ in range(100):
            refuse_random(nn.Linear(8, 5), torch.zeros(2, 8))
    finally:
        is_over.set()
        other.join()


def test_what_does_not_draw_is_not_refused() -> None:
    model = with_dropout(nn.Dropout(0.5))
    remove_dropout(model)
    refuse_random(model, torch.zeros(2, 8))
    model = with_dropout(_Hidden())
    refuse_random(model.eval(), torch.zeros(2, 8))
    remove_dropout(model.train())
    with pytest.raises(ModelError, match="draws random numbers"):
        refuse_random(model, torch.zeros(2, 8))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DRAWING)
def test_an_example_adds_the_same_whoever_else_is_in_the_batch(name: str) -> None:
    info = DatasetInfo("x", (3, 32, 32), 4, 100, 0, 0, 0, tuple("abcd"))
    model = build_model(f"timm/{name}", info, norm="group", seed=0)
    engine = make_engine(model, 3)
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 2])

    def clipped(*rows: int) -> torch.Tensor:
        sums = engine.clipped_gradient_sum(x, y, np.array(rows), C)
        return torch.cat([total.flatten() for total in sums])

    rest = clipped(0, 1, 2) - clipped(1, 2)
    assert float((rest - clipped(0)).norm()) < 1e-2 * C
    assert float(rest.norm()) <= 1.01 * C


def test_the_networks_above_would_draw() -> None:
    import timm

    for name in DRAWING:
        model = timm.create_model(name, num_classes=4).train()
        with pytest.raises(ModelError, match="draws random numbers"):
            refuse_random(model, torch.zeros(2, 3, 64, 64))

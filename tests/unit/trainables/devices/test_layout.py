"""Channels last: where a network lies so, and that its gradients per example are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gradients import relative_error
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.canaries import clipped_gradients
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import SparseValues, magnitude_mask
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import (
    head_layers,
    lay_out,
    on_device,
    trains_channels_last,
)

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def network(name: str, **options: Any) -> nn.Module:
    info = DatasetInfo("r", (3, 32, 32), 10, 256, 0, 0, 0, tuple("0123456789"))
    return build_model(name, info, seed=0, **{"norm": "group", **options})


def is_last(model: nn.Module) -> bool:
    """Say whether all weights of convolutions lie so; those that lie both ways do not count."""
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    told = [w for w in weights if w.shape[1] > 1 and w[0, 0].numel() > 1]
    assert told
    first = {weight.is_contiguous() for weight in told}
    last = {weight.is_contiguous(memory_format=torch.channels_last) for weight in told}
    assert len(first) == len(last) == 1
    assert first != last
    return last.pop()


@pytest.mark.parametrize("name", ["tanh_cnn", "small_resnet", "timm/resnet18"])
def test_networks_with_convolutions_lie_so_on_cuda(name: str) -> None:
    model = network(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert not trains_channels_last(model, "cpu")
    assert trains_channels_last(model, "cuda")
    assert not is_last(on_device(model, "cpu"))
    lay_out(model, "cuda")
    assert is_last(model)
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_networks_without_convolutions_stay_as_they_are() -> None:
    assert not trains_channels_last(network("linear"), "cuda")


def test_depthwise_convolutions_lie_so_everywhere() -> None:
    model = network("timm/tf_efficientnet_lite0", norm="frozen")
    assert trains_channels_last(model, "cpu")
    assert model.conv_stem.weight.is_contiguous(memory_format=torch.channels_last)


def opacus(model: nn.Module) -> Any:
    return OpacusEngine(model, 4)


def bias(model: nn.Module) -> Any:
    head = head_layers(model)
    for name, parameter in model.named_parameters():
        layer, _, own = name.rpartition(".")
        parameter.requires_grad_(own == "bias" or layer in head)
    return BiasEngine(model, 4)


def sparse(model: nn.Module) -> Any:
    return SparseEngine(model, magnitude_mask(model, 0.1), 4)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("make", [opacus, bias, sparse])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tanh_cnn", {}),
        ("small_resnet", {}),
        ("small_resnet", {"standardize": True}),
        pytest.param("timm/resnet18", {}, marks=pytest.mark.slow),
        pytest.param("timm/resnet18", {"norm": "frozen"}, marks=pytest.mark.slow),
        ("timm/regnetx_002", {"norm": "frozen"}),
    ],
)
def test_gradients_of_examples_are_those_of_channels_first(
    make: Callable[[nn.Module], Any], name: str, options: dict[str, Any], device: str
) -> None:
    """Entry by entry, in the order of the weights as they are written down."""
    if make is sparse and "standardize" in options:
        pytest.skip("entries of standardised weights are refused")
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    y, rows = torch.arange(4), np.arange(4)
    first, last = (network(name, **options).to(device) for _ in range(2))
    lay_out(last, "cuda")
    assert is_last(last)
    engines = make(first), make(last)
    expected, actual = (clipped_gradients(engine, x, y, rows, 1e9) for engine in engines)
    assert float((actual - expected).norm() / expected.norm()) < 1e-4
    sums = [engine.clipped_gradient_sum(x, y, rows, 0.1) for engine in engines]
    assert relative_error(sums[1], sums[0]) < 1e-4
    assert is_last(last)


def test_chosen_entries_are_written_where_they_lie() -> None:
    first, last = network("small_resnet"), network("small_resnet")
    lay_out(last, "cuda")
    for model in (first, last):
        values = SparseValues(magnitude_mask(model, 0.1))
        with torch.no_grad():
            for value in values.parameters:
                value.add_(torch.arange(value.numel()).to(value))
        values.write()
    assert is_last(last)
    pairs = zip(first.parameters(), last.parameters())
    assert all(torch.equal(one, other) for one, other in pairs)

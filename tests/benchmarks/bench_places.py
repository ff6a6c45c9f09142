"""How far an example's gradient moves with its place in a chunk, by network, engine and precision.

A clipped sum is formed of the same examples in other orders. What an example adds should be a
function of that example alone (``dpsweep.trainables.gradients.sums``); sums over examples are float64, so
all that is above 1e-15 comes of kernels that round a row otherwise at another place, or each time.

    python tests/benchmarks/bench_places.py [--device cuda] [--examples 64] [--orders 6] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tables import Table, show
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.devices.numerics import PRECISIONS
from dpsweep.trainables.gradients.bias_engine import BiasEngine
from dpsweep.trainables.gradients.per_example import make_engine
from dpsweep.trainables.gradients.sparse_engine import SparseEngine
from dpsweep.trainables.gradients.sparse_mask import magnitude_mask
from dpsweep.trainables.methods.bitfit.phases import chosen_names
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import on_device

CLASSES = 10
#: model.name -> shape of its records.
NETWORKS = {
    "tanh_cnn": (1, 28, 28),
    "small_resnet": (3, 32, 32),
    "timm/resnet18": (3, 32, 32),
    "timm/test_vit": (3, 160, 160),
}
#: Share of a convolution's weights that train.
DENSITY = 0.1


def whole(model: nn.Module, examples: int, precision: str) -> Any:
    """Return the engine that trains all of a network."""
    return make_engine(model, examples, precision=precision)


def biases(model: nn.Module, examples: int, precision: str) -> Any:
    """Return the engine that trains biases and the head, as the method ``bitfit`` does."""
    names = chosen_names(model, "bitfit", ())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return BiasEngine(model, examples, precision=precision)


def sparse(model: nn.Module, examples: int, precision: str) -> Any:
    """Return the engine that trains a part of the convolutions' weights, and all else."""
    return SparseEngine(model, magnitude_mask(model, DENSITY), examples, precision=precision)


ENGINES: dict[str, Callable[[nn.Module, int, str], Any]] = {
    "whole": whole,
    "biases": biases,
    "sparse": sparse,
}


def moved(
    network: str, engine: str, precision: str, *, examples: int, orders: int, device: str
) -> str:
    """Return the largest distance of a sum in another order, in parts of it; or who refuses it."""
    shape = NETWORKS[network]
    names = tuple(map(str, range(CLASSES)))
    info = DatasetInfo("random", shape, CLASSES, examples, 0, 0, 0, names)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, *shape, generator=generator)
    y = torch.arange(examples) % CLASSES
    model = on_device(build_model(network, info, norm="group", seed=0), device)
    try:
        made = ENGINES[engine](model, examples, precision)
        expected = _sum(made, x, y, np.arange(examples))
    except ModelError:
        return "refused"
    distances = [
        _sum(made, x, y, np.random.default_rng(seed).permutation(examples)).sub_(expected).norm()
        for seed in range(orders)
    ]
    return f"{float(max(distances) / expected.norm()):.1e}"


def _sum(engine: Any, x: torch.Tensor, y: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    return torch.cat([part.flatten() for part in engine.clipped_gradient_sum(x, y, rows, 1.0)])


def main(words: list[str] | None = None) -> None:
    """Measure and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--orders", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    sizes = {"examples": options.examples, "orders": options.orders, "device": options.device}
    rows = [
        (network, engine, *(moved(network, engine, precision, **sizes) for precision in PRECISIONS))
        for network in NETWORKS
        for engine in ENGINES
        if engine != "sparse" or "vit" not in network
    ]
    caption = (
        f"Largest distance, in parts of it, between the clipped sum of {options.examples} examples "
        f"and that of the same in another order, of {options.orders} orders, on {options.device}."
    )
    table = Table(("network", "trains", *PRECISIONS), tuple(rows), caption)
    show([table], {"moved": rows}, as_json=options.json)


if __name__ == "__main__":
    main()

"""torch.compile against plain torch: the block of a linear head, a network forwards and backwards.

A figure is the median process CPU time of one call, on one thread; beside it, how long the first
calls took, in which torch compiles (wall time, with an empty cache), and how many calls pay for it.
The engines' hooks are no part of the network here, so its gain is the most that they could have.

    python tests/benchmarks/bench_compile.py [--calls 300] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from timing import median_ms
from torch import nn

from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.gradients.clipping import (
    clip_factors,
    norm64,
    product_of_norms,
    row_norms,
)
from dpsweep.trainables.gradients.sums import add_product, tile_of
from dpsweep.trainables.networks.build import build_model

CLASSES = 10
BLOCK = 128


def head_block(
    x: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return the clipped residuals of a block, (classes, rows), as ``LinearHeadEngine`` does."""
    logits = weight @ x.T + bias[:, None]
    residual = torch.softmax(logits, dim=0)
    residual = residual.scatter_add(0, labels[None], residual.new_full((1, len(x)), -1.0))
    squares = row_norms(x).square() + 1.0
    norms = product_of_norms(squares.sqrt(), norm64(residual, 0))
    return residual * clip_factors(norms, 0.1)


def of_head(features: int) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """Return one block of a head with its sum: plain, and compiled."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BLOCK, features, generator=generator)
    labels = torch.randint(0, CLASSES, (BLOCK,), generator=generator)
    weight, bias = torch.randn(CLASSES, features, generator=generator), torch.zeros(CLASSES)
    total = torch.zeros(CLASSES, features, dtype=torch.float64)
    tile = tile_of(x)

    def call(block: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor]:
        def once() -> torch.Tensor:
            with torch.no_grad():
                residual = block(x, labels, weight, bias)
                add_product(total, residual, x, tile)
            return residual

        return once

    return call(head_block), call(torch.compile(head_block, dynamic=False))


def of_network(
    name: str, shape: tuple[int, ...], batch: int
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """Return forward and backward pass of a network by all weights: plain, and compiled."""
    info = DatasetInfo("r", shape, CLASSES, batch, 0, 0, 0, tuple("0123456789"))
    model = build_model(name, info, norm="group", seed=0).train()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *shape, generator=generator)
    y = torch.randint(0, CLASSES, (batch,), generator=generator)
    parameters = list(model.parameters())

    def call(network: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor]:
        def once() -> torch.Tensor:
            loss = nn.functional.cross_entropy(network(x), y, reduction="sum")
            return torch.autograd.grad(loss, parameters)[0]

        return once

    return call(model), call(torch.compile(model, dynamic=False))


CASES = {
    "head of 784": lambda: of_head(784),
    "head of 3969": lambda: of_head(3969),
    "tanh_cnn": lambda: of_network("tanh_cnn", (1, 28, 28), 64),
    "small_resnet": lambda: of_network("small_resnet", (3, 32, 32), 64),
}


def measured(calls: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield figures by case: milliseconds of a call, seconds to compile, relative difference."""
    for name, make in CASES.items():
        torch.compiler.reset()
        plain, compiled = make()
        begun = time.perf_counter()
        expected, actual = plain(), compiled()
        compiled()
        compiling = time.perf_counter() - begun
        variants = {"plain": plain, "compiled": compiled}
        times = median_ms(variants, rounds=5, repeats=lambda _: calls // 5, device="cpu")
        gain = times["plain"] - times["compiled"]
        yield (
            name,
            {
                **times,
                "compile_s": compiling,
                "pays_after": 1000 * compiling / gain if gain > 0 else math.inf,
                "difference": float((actual - expected).norm() / expected.norm()),
            },
        )


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.json:
        print(
            f"{'':<16}{'plain ms':>10}{'compiled':>10}{'compile s':>11}{'pays after':>12}  differs"
        )
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for name, row in measured(options.calls):
            if options.json:
                print(json.dumps({"case": name, **row}))
                continue
            print(
                f"{name:<16}{row['plain']:>10.2f}{row['compiled']:>10.2f}{row['compile_s']:>11.1f}"
                f"{row['pays_after']:>12.0f}  {row['difference']:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()

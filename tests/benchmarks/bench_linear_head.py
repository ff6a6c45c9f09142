"""One step of a linear head: closed form against plain torch, Opacus hooks and Opacus ghost norms.

A step is: draw a Poisson batch, gather it, gradient (clipped and noised, except plain torch), SGD
with momentum. The variants run round-robin in one process on one thread; a figure is the median
process CPU time of a step, which a busy machine disturbs less than wall time (on CUDA: wall time).

    python tests/benchmarks/bench_linear_head.py [--features 3969] [--batch 4096] [--json]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tables import Table, clock, compared, show
from timing import median_ms
from torch import nn

from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.gradients.per_example import LinearHeadEngine

NOISE_MULTIPLIER = 1.0
MAX_GRAD_NORM = 0.1
#: Variant -> its row.
ROWS = {
    "closed form": "closed form, blocked (`dp_sgd`, `scatternet` with `linear`)",
    "non-private torch": "plain torch, not private",
    "Opacus ghost": "Opacus ghost clipping",
    "Opacus hooks": "Opacus hooks",
}
#: Largest ratio of the closed form's time to the variant's.
GOALS = {"non-private torch": 0.5, "Opacus ghost": 1 / 3, "Opacus hooks": 1 / 25}


class Bench:
    """The data, and one step function per variant."""

    def __init__(
        self, records: int, features: int, classes: int, batch: int, device: str = "cpu"
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(records, features, generator=generator).to(device)
        self.y = torch.randint(0, classes, (records,), generator=generator).to(device)
        self.device = device
        self.rate = batch / records
        self.batch = batch
        self.features = features
        self.classes = classes
        self.rng = np.random.default_rng(0)

    def rows(self) -> np.ndarray:
        return np.flatnonzero(self.rng.random(len(self.y)) < self.rate)

    def _head(self) -> nn.Linear:
        torch.manual_seed(0)
        return nn.Linear(self.features, self.classes).to(self.device)

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def closed_form(self) -> Callable[[], None]:
        model = self._head()
        optimizer = self._optimizer(model)
        engine = LinearHeadEngine(model, expected_batch=self.batch)
        noise = SecretNoise(self.device)

        def step() -> None:
            sums = engine.clipped_gradient_sum(self.x, self.y, self.rows(), MAX_GRAD_NORM)
            for parameter, total in zip(model.parameters(), sums):
                drawn = noise.like(total, NOISE_MULTIPLIER * MAX_GRAD_NORM)
                parameter.grad = total.add_(drawn).div_(self.batch).float()
            optimizer.step()

        return step

    def plain_torch(self) -> Callable[[], None]:
        model = self._head()
        optimizer = self._optimizer(model)

        def step() -> None:
            rows = torch.from_numpy(self.rows()).to(self.device)
            x, y = self.x[rows], self.y[rows]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum") / self.batch
            loss.backward()
            optimizer.step()

        return step

    def opacus(self, *, ghost: bool) -> Callable[[], None]:
        from opacus import GradSampleModule
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer
        from opacus.optimizers.optimizer_fast_gradient_clipping import (
            DPOptimizerFastGradientClipping,
        )
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        options = {
            "noise_multiplier": NOISE_MULTIPLIER,
            "max_grad_norm": MAX_GRAD_NORM,
            "expected_batch_size": self.batch,
        }
        head = self._head()
        if ghost:
            model = GradSampleModuleFastGradientClipping(head, max_grad_norm=MAX_GRAD_NORM)
            optimizer = DPOptimizerFastGradientClipping(self._optimizer(model), **options)
            criterion = DPLossFastGradientClipping(
                model, optimizer, nn.CrossEntropyLoss(reduction="mean"), loss_reduction="mean"
            )
        else:
            model = GradSampleModule(head)
            optimizer = DPOptimizer(self._optimizer(model), **options)
            criterion = nn.CrossEntropyLoss()

        def step() -> None:
            rows = torch.from_numpy(self.rows()).to(self.device)
            x, y = self.x[rows], self.y[rows]
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing when")
                criterion(model(x), y).backward()
            optimizer.step()

        return step


def measure(
    *,
    records: int = 60_000,
    features: int = 3969,
    classes: int = 10,
    batch: int = 4096,
    rounds: int = 5,
    steps: int = 3,
    device: str = "cpu",
) -> dict[str, float]:
    """Return the median milliseconds of a step for every variant."""
    torch.set_num_threads(1)
    bench = Bench(records, features, classes, batch, device)
    variants = {
        "closed form": bench.closed_form(),
        "non-private torch": bench.plain_torch(),
        "Opacus ghost": bench.opacus(ghost=True),
        "Opacus hooks": bench.opacus(ghost=False),
    }
    return median_ms(
        variants,
        rounds=rounds,
        repeats=lambda name: 1 if name == "Opacus hooks" else steps,
        device=device,
    )


def table(times: dict[str, float], options: dict[str, Any]) -> Table:
    """Return the medians of ``measure``, called with these options, beside their goals."""
    cells = compared(times, "closed form", GOALS, is_time=True)
    return Table(
        ("variant", "ms", "closed form takes", "goal"),
        tuple((ROWS[name], *row) for name, row in cells.items()),
        f"{options['records']:,} records, {options['features']:,} features, "
        f"{options['classes']} classes, expected batch {options['batch']:,}; a whole step (Poisson "
        f"draw, gather, clip, noise, momentum), {clock(options['device'], options['rounds'])}.",
    )


def main() -> None:
    """Measure and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=3969)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    times = measure(**options)
    show([table(times, options)], {"ms": times, **options}, as_json=as_json)


if __name__ == "__main__":
    main()

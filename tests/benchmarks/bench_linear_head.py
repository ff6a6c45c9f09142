"""One step of a linear head: closed form against plain torch, Opacus hooks and Opacus ghost norms.

A step is: draw a Poisson batch, gather it, gradient (clipped and noised, except plain torch), SGD
with momentum. The variants run round-robin in one process on one thread; a figure is the median
process CPU time of a step, which a busy machine disturbs less than wall time (on CUDA: wall time).

    python tests/benchmarks/bench_linear_head.py [--features 3969] [--batch 4096] [--json]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from steps import Batches, Step, after_an_epoch, engine_step, opacus_step, plain_step
from tables import Table, clock, compared, show
from timing import median_ms
from torch import nn

from dpsweep.trainables.gradients.per_example import LinearHeadEngine

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
        x = torch.randn(records, features, generator=generator).to(device)
        y = torch.randint(0, classes, (records,), generator=generator).to(device)
        self.data = Batches(x, y, batch, device, is_poisson=True)
        self.features = features
        self.classes = classes

    def _head(self) -> tuple[nn.Linear, Batches, torch.optim.Optimizer]:
        torch.manual_seed(0)
        head = nn.Linear(self.features, self.classes).to(self.data.device)
        return head, self.data, torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

    def closed_form(self) -> Step:
        head, data, optimizer = self._head()
        engine = after_an_epoch(LinearHeadEngine(head, expected_batch=data.batch), data)
        return engine_step(head, data, optimizer, engine)

    def plain_torch(self) -> Step:
        return plain_step(*self._head())

    def opacus(self, *, ghost: bool) -> Step:
        return opacus_step(*self._head(), ghost=ghost)


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
        f"draw, gather, clip, noise, momentum) after the first epoch, {clock(options['device'], options['rounds'])}.",
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

"""A step of M linear heads on one shared Poisson batch against M steps of one head each.

A step is: draw a batch, gather it, clipped sums, noise, SGD with momentum. Both run round-robin in
one process on one thread; a figure is the median process CPU time of a step, divided by M (on CUDA:
wall time). What sharing the batch costs in privacy is in the documentation of ``ScatterNet``.

    python tests/benchmarks/bench_many_heads.py [--features 3969] [--batch 4096] [--json]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from bench_linear_head import Bench
from steps import Step, after_an_epoch, engine_step
from tables import Table, at_most, clock, number, show, times
from timing import median_ms
from torch import nn

from dpsweep.trainables.gradients.linear_head import ManyHeadsEngine

HEADS = (8, 32)
GOAL = 0.33


def many_heads(bench: Bench, count: int) -> Step:
    """Return a step of ``count`` heads on one batch."""
    data = bench.data
    heads = [nn.Linear(bench.features, bench.classes).to(data.device) for _ in range(count)]
    groups = [{"params": list(head.parameters()), "lr": 0.1} for head in heads]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    engine = after_an_epoch(ManyHeadsEngine(heads, expected_batch=data.batch), data)
    return engine_step(nn.ModuleList(heads), data, optimizer, engine, count)


def measure(
    *,
    records: int = 60_000,
    features: int = 3969,
    classes: int = 10,
    batch: int = 4096,
    rounds: int = 5,
    device: str = "cpu",
) -> dict[int, float]:
    """Return the median milliseconds per configuration and step; key 1 is one head alone."""
    torch.set_num_threads(1)
    bench = Bench(records, features, classes, batch, device)
    variants = {1: bench.closed_form(), **{count: many_heads(bench, count) for count in HEADS}}
    medians = median_ms(
        variants, rounds=rounds, repeats=lambda count: 8 if count == 1 else 2, device=device
    )
    return {count: value / count for count, value in medians.items()}


def table(medians: dict[int, float], options: dict[str, Any]) -> Table:
    """Return the medians of ``measure``, called with these options, beside their goal."""
    rows = []
    for count, value in medians.items():
        ratio = value / medians[1]
        goal = at_most(GOAL, ratio) if count == HEADS[-1] else ""
        rows.append((str(count), number(value), "1" if count == 1 else times(ratio), goal))
    return Table(
        ("heads", "ms, a head", "of one head alone", "goal"),
        tuple(rows),
        f"{options['records']:,} records, {options['features']:,} features, "
        f"{options['classes']} classes, expected batch {options['batch']:,}; a whole step after the "
        f"first epoch, divided by the number of its heads, {clock(options['device'], options['rounds'])}.",
    )


def main() -> None:
    """Measure and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=3969)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    medians = measure(**options)
    show([table(medians, options)], {"ms": medians, **options}, as_json=as_json)


if __name__ == "__main__":
    main()

"""A step of M linear heads on one shared Poisson batch against M steps of one head each.

A step is: draw a batch, gather it, clipped sums, noise, SGD with momentum. Both run round-robin in
one process on one thread; a figure is the median process CPU time of a step, divided by M (on CUDA:
wall time). What sharing the batch costs in privacy is in the documentation of ``ScatterNet``.

    python tests/benchmarks/bench_many_heads.py [--features 3969] [--batch 4096] [--json]
"""

from __future__ import annotations

import argparse
import json

import torch
from bench_linear_head import Bench
from steps import Step, engine_step
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
    engine = ManyHeadsEngine(heads, expected_batch=data.batch)
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
    times = median_ms(
        variants, rounds=rounds, repeats=lambda count: 8 if count == 1 else 2, device=device
    )
    return {count: value / count for count, value in times.items()}


def main() -> None:
    """Measure and print a table, or JSON."""
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
    times = measure(**options)
    ratios = {count: value / times[1] for count, value in times.items()}
    met = ratios[HEADS[-1]] <= GOAL
    if as_json:
        print(json.dumps({"ms": times, "ratio": ratios, "goal_met": met, **options}))
        return
    print(f"{options['records']} x {options['features']}, batch {options['batch']}, 1 thread")
    print(f"{'heads':<8}{'ms/step/configuration':>24}{'of one head alone':>20}  goal")
    for count, value in times.items():
        goal = f"<= {GOAL} {'' if met else 'MISSED'}" if count == HEADS[-1] else ""
        print(f"{count:<8}{value:>24.2f}{ratios[count]:>19.3f}x  {goal}")


if __name__ == "__main__":
    main()

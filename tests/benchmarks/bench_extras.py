"""What the extras of DP-SGD gain over doing without: each part beside its own baseline.

The tanh CNN on a part of Fashion-MNIST, trained by ``dp_sgd``; of ``bands`` and ``bands_many`` a linear
model on its pixels. All variants of a part have the same plan (batch, steps, epsilon; with bands in
rounds), and each its own best learning rate of its public grid: that with the best mean accuracy over the
seeds on validation records, which are public. The table has the mean over the seeds on test records, its
spread, and the difference to the baseline from seed to seed. A seed is one of initial weights; batches and
noise are secret, so figures differ from run to run.

    python tests/benchmarks/bench_extras.py PART [--epsilons 3 8] [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from trained import Task, differences, train

FIXED = {
    "model.name": "tanh_cnn",
    "clip.max_grad_norm": 0.1,
    "batch.expected": 250,
    "batch.physical": 128,
    "train.max_steps": 60,
    "train.num_private": 5000,
}
VIEWS = {"augment.multiplicity": 2, "augment.kinds": "crop+flip", "augment.padding": 2}
AVERAGE = {"optim.ema": 0.95}
Variants = Mapping[str, tuple[Mapping[str, Any], Sequence[float]]]
LINEAR = {"model.name": "linear", "train.max_steps": 200}
MANY = {"train.num_private": 50_000, "batch.expected": 500}
FEW_RATES, MANY_RATES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), (8.0, 16.0, 32.0, 64.0)
SGD, ADAM, ADAM_BC = (4.0, 8.0, 16.0), (0.01, 0.03, 0.1), (0.003, 0.01, 0.03)
#: Part -> variant -> (hyperparameters, rates); the first variant is the baseline.
PARTS: Mapping[str, Variants] = {
    "recipe": {
        "plain": ({}, SGD),
        "average": (AVERAGE, SGD),
        "1 view": ({**VIEWS, "augment.multiplicity": 1}, SGD),
        "2 views": (VIEWS, SGD),
        "2 views, average": ({**VIEWS, **AVERAGE}, SGD),
    },
    "adam_bc": {
        "adam": ({"optim.name": "adam"}, ADAM),
        **{
            f"adam_bc, floor {floor:g}": ({"optim.name": "adam_bc", "optim.floor": floor}, ADAM_BC)
            for floor in (0.1, 0.3)
        },
    },
    "clip": {
        f"{rule}, C = {bound:g}": ({"clip.max_grad_norm": bound, "clip.rule": rule}, rates)
        for rule, bound, rates in (
            ("abadi", 10.0, (0.04, 0.08, 0.16)),
            ("abadi", 0.1, SGD),
            ("automatic", 0.1, SGD),
            ("quantile", 10.0, (0.04, 0.08, 0.16)),
            ("quantile", 1.0, (0.1, 0.2, 0.4)),
        )
    },
    **{
        part: {
            f"b = {bands}": ({**LINEAR, **records, "noise.bands": bands}, rates)
            for bands in (1, 4, 8, 16)
        }
        for part, records, rates in (
            ("bands", {}, FEW_RATES),
            ("bands_many", MANY, MANY_RATES),
        )
    },
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = Task("fashion_mnist", num_validation=2000, num_test=5000)
    variants, rows = PARTS[options.part], []
    for seed, epsilon, variant in product(range(options.seeds), options.epsilons, variants):
        given, rates = variants[variant]
        for rate in rates:
            started = time.process_time()
            hparams = {**FIXED, **given, "optim.lr": rate}
            scores = train(task, "dp_sgd", hparams, epsilon=epsilon, seed=seed)
            place = {"epsilon": epsilon, "variant": variant, "rate": rate, "seed": seed}
            rows.append({**place, **scores, "cpu_s": time.process_time() - started})
            print(rows[-1], flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows))
    for line in differences(rows, of="rate"):
        print(line)


if __name__ == "__main__":
    main()

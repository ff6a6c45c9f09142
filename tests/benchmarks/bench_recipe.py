"""What parts of the recipe of De et al. 2022 gain over plain DP-SGD: views, average, both.

The tanh CNN on a part of Fashion-MNIST, trained by ``dp_sgd``. Every variant has the same plan (batch,
steps, noise), and its own best learning rate of one public grid: that with the best mean accuracy over
the seeds on validation records, which are public. The table has the mean over the seeds on test
records, its spread, and the difference to plain from seed to seed. A seed is one of initial weights;
batches and noise are secret, so figures differ from run to run.

    python tests/benchmarks/bench_recipe.py [--epsilons 3 8] [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trained import Task, differences, train

VIEWS = {"augment.multiplicity": 4, "augment.kinds": "crop+flip", "augment.padding": 2}
AVERAGE = {"optim.ema": 0.95}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "average": AVERAGE,
    "4 views": VIEWS,
    "4 views, average": {**VIEWS, **AVERAGE},
}
RATES = (1.0, 2.0, 4.0, 8.0)
FIXED = {
    "model.name": "tanh_cnn",
    "optim.momentum": 0.9,
    "clip.max_grad_norm": 0.1,
    "batch.expected": 500,
    "batch.physical": 128,
    "train.max_steps": 60,
    "train.num_private": 10_000,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = Task("fashion_mnist", num_validation=2000, num_test=10_000)
    rows = []
    for epsilon in options.epsilons:
        for variant in options.variants:
            for rate in options.rates:
                for seed in range(options.seeds):
                    started = time.process_time()
                    hparams = {**FIXED, **VARIANTS[variant], "optim.lr": rate}
                    scores = train(task, "dp_sgd", hparams, epsilon=epsilon, seed=seed)
                    rows.append(
                        {
                            "epsilon": epsilon,
                            "variant": variant,
                            "rate": rate,
                            "seed": seed,
                            **scores,
                        }
                        | {"cpu_s": time.process_time() - started}
                    )
                    print(rows[-1], flush=True)
                    if options.json:
                        options.json.write_text(json.dumps(rows))
    for line in differences(rows, of="rate", base=options.variants[0]):
        print(line)
    assert np.isfinite([row["test"] for row in rows]).all()


if __name__ == "__main__":
    main()

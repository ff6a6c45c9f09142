"""Linear heads on frozen features at one epsilon each, none of them with a search.

Least squares and steps that are divided by the covariance (method ``least_squares`` with its
defaults), DP-SGD with ``optim.noise_scale: 5`` (``scatternet``) and AdaMix with two public records
of each class and ``optim.noise_scale: 1``, on the features of EfficientNet-Lite0 and of ScatterNet
of Fashion-MNIST. Methods are run by themselves, in this process and on one thread, as trials run
them. Epsilon is that of one run (delta 1e-5, example, add_or_remove_one, pld).

    pip install 'dpsweep[scatternet,backbones]'
    python tests/benchmarks/bench_heads.py --features heads [--heads lite0-closed] [--epsilon 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.method import PlanContext, RunContext

DELTA = 1e-5
LITE0 = {"features.name": "efficientnet_lite0", "features.image_size": 96}
#: Each record's features with mean 0 and variance 1, as the learning rates of DP-SGD assume.
CENTRED = {**LITE0, "normalize.kind": "group", "normalize.groups": 1}
SCATTER = {"features.name": "scatternet"}
STEPS = {"least_squares.variant": "feature_covariance"}
SGD = {"optim.noise_scale": 5, "optim.momentum": 0.9, "clip.max_grad_norm": 0.1}
LONG = {"batch.expected": 1024, "train.epochs": 6, "optim.input_norm": 35.8}
LARGE = {"batch.expected": 8192, "train.epochs": 20, "optim.input_norm": 63}
ADAMIX = {
    "public.shots": 2,
    "noise.noise_multiplier": None,
    "train.max_steps": 100,
    "optim.noise_scale": 1,
}
#: Head -> its method and hyperparameters.
HEADS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "lite0-closed": ("least_squares", CENTRED),
    "lite0-steps": ("least_squares", {**CENTRED, **STEPS}),
    "lite0-sgd": ("scatternet", {**CENTRED, **SGD, **LONG}),
    "lite0-adamix": ("adamix", {**LITE0, **ADAMIX}),
    "scatter-closed": ("least_squares", SCATTER),
    "scatter-steps": ("least_squares", {**SCATTER, **STEPS}),
    "scatter-sgd": ("scatternet", {**SCATTER, **SGD, **LARGE}),
}


def records(method: str) -> SweepData:
    """Return Fashion-MNIST less a tenth, which nothing here looks at; AdaMix has public records."""
    public = 0.01 if method == "adamix" else 0.0
    spec = SweepSpec.from_yaml(f"""
name: heads
data:
  dataset: fashion_mnist
  public: {{fraction: {public}}}
  validation: {{fraction: 0.1, visibility: public}}
  test: {{visibility: public}}
privacy: {{accounting: unaccounted, trial_epsilon: 1, delta: {DELTA}}}
search: {{space: {{method: dp_sgd}}}}
""")
    return load_dataset(spec.data)


def run(head: str, data: SweepData, epsilon: float, seed: int, features: Path) -> float:
    """Return the test accuracy of a head, with fresh noise."""
    method, named = HEADS[head]
    kind = TRAINABLES[method]
    budget = PrivacyBudget(target_epsilon=epsilon, delta=DELTA)
    context = PlanContext(budget, "pld", data.info.num_private, given=frozenset(named))
    hparams = kind.complete(resolve(kind.hyperparameters, named), context)
    plan = kind.plan(hparams, context)
    instance = kind()
    instance.prepare(data, hparams, plan, RunContext(seed, 0, supplies=Supplies(features)))
    instance.run(0, len(plan))
    return float(instance.evaluate("test")["accuracy"])


def main() -> None:
    """Run the bench; print each mean as it is there, in per cent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path, required=True, help="folder that keeps features")
    parser.add_argument("--heads", type=lambda text: text.split(","), default=list(HEADS))
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    unknown = set(options.heads) - set(HEADS)
    if unknown:
        parser.error(f"no head {', '.join(sorted(unknown))}; there are {', '.join(HEADS)}")
    torch.set_num_threads(1)
    print(f"{'head':16} {'epsilon':>7} {'test accuracy':>15} {'seconds':>8}  runs", flush=True)
    loaded: dict[bool, SweepData] = {}
    for head in options.heads:
        method = HEADS[head][0]
        has_public = method == "adamix"
        if has_public not in loaded:
            loaded[has_public] = records(method)
        for epsilon in options.epsilon or (0.1, 0.3, 1.0, 3.0):
            started, scores = time.process_time(), []
            for seed in range(options.seeds):
                root = options.features.resolve()
                scores.append(100 * run(head, loaded[has_public], epsilon, seed, root))
            spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
            seconds = (time.process_time() - started) / len(scores)
            print(
                f"{head:16} {epsilon:7g} {statistics.mean(scores):6.2f} +- {spread:.2f} "
                f"{seconds:10.1f}  {len(scores)}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Linear heads on frozen features at one epsilon each, none of them with a search.

Least squares and steps that are divided by the covariance (method ``least_squares`` with its
defaults), DP-SGD with ``optim.noise_scale: 5`` (``scatternet``) and AdaMix with two public records
of each class and ``optim.noise_scale: 1``, on the features of EfficientNet-Lite0 and of ScatterNet.
A study a head, of which trials are repetitions at four epsilons; epsilon is that of one trial. A
study that is there goes on, so a bench that was killed does too.

    python tests/benchmarks/bench_heads.py --root heads [--heads lite0-closed,lite0-sgd]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from bench_regret import shared_ray

from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.sweep import run_sweep

HERE = Path(__file__).parent
LITE0 = {"features.name": "efficientnet_lite0", "features.image_size": 96}
#: Each record's features with mean 0 and variance 1, as the learning rates of DP-SGD assume.
CENTRED = {**LITE0, "normalize.kind": "group", "normalize.groups": 1}
SCATTER = {"features.name": "scatternet"}
STEPS = {"least_squares.variant": "feature_covariance"}
SGD = {
    "method": "scatternet",
    "optim.noise_scale": 5,
    "optim.momentum": 0.9,
    "clip.max_grad_norm": 0.1,
}
ADAMIX = {
    "method": "adamix",
    "public.shots": 2,
    "noise.noise_multiplier": None,
    "train.max_steps": 100,
    "optim.noise_scale": 1,
}
#: Head -> what its study has besides heads.yaml.
HEADS: Mapping[str, Mapping[str, Any]] = {
    "lite0-closed": CENTRED,
    "lite0-steps": {**CENTRED, **STEPS},
    "lite0-sgd": {
        **CENTRED,
        **SGD,
        "optim.input_norm": 35.8,
        "batch.expected": 1024,
        "train.epochs": 6,
    },
    "lite0-adamix": {**LITE0, **ADAMIX},
    "scatter-sgd": {
        **SCATTER,
        **SGD,
        "optim.input_norm": 63,
        "batch.expected": 8192,
        "train.epochs": 20,
    },
    "scatter-closed": SCATTER,
    "scatter-steps": {**SCATTER, **STEPS},
}


def run(head: str, root: Path) -> SweepResult:
    """Run the study of a head, or what is left of it, and return it."""
    tree = yaml.safe_load((HERE / "heads.yaml").read_text())
    tree["name"] = f"heads-{head}"
    tree["storage"] = {"path": str(root)}
    tree["search"]["space"] |= HEADS[head]
    if tree["search"]["space"]["method"] == "adamix":
        tree["data"]["public"] = {"fraction": 0.01}
    run_sweep(SweepSpec.from_yaml(yaml.safe_dump(tree)))
    return load_sweep(tree["name"], root=root)


def print_rows(head: str, result: SweepResult) -> None:
    """Print test accuracy in per cent, mean and standard deviation, one row an epsilon."""
    cells: dict[float, list[float]] = defaultdict(list)
    for trial in result.results:
        if "test/accuracy" in trial.metrics:
            cells[trial.config["noise.target_epsilon"]].append(100 * trial.metrics["test/accuracy"])
    for epsilon, scores in sorted(cells.items()):
        spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
        mean = statistics.mean(scores)
        print(f"{head:16} {epsilon:7g} {mean:6.2f} +- {spread:.2f}  {len(scores)}", flush=True)


def main() -> None:
    """Run the bench and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="keeps studies and features")
    parser.add_argument("--heads", type=lambda text: text.split(","), default=list(HEADS))
    options = parser.parse_args()
    unknown = set(options.heads) - set(HEADS)
    if unknown:
        parser.error(f"no head {', '.join(sorted(unknown))}; there are {', '.join(HEADS)}")
    print(f"{'head':16} {'epsilon':>7} {'test accuracy':>15}  repetitions")
    with shared_ray(1):
        for head in options.heads:
            started = time.monotonic()
            result = run(head, options.root.resolve())
            print_rows(head, result)
            print(f"  ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()

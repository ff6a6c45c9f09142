"""What pruning by epsilon buys: fifo against epsilon_halving under one study budget, paired seeds.

Both spend at most the same (study_epsilon, delta), guaranteed by the same kind of filter, draw the
same configurations in the same order, and are scored on the same public validation records.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from dpsweep.results.study import load_sweep
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState
from dpsweep.sweep import run_sweep

SPEC = Path(__file__).with_name("search_fashion_mnist.yaml")
HALVING = [
    "scheduler.type=epsilon_halving",
    "scheduler.rungs=[0.42, 0.55]",
    "scheduler.reduction_factor=3",
]
SCHEDULERS = {
    "fifo": ["scheduler.type=fifo"],
    "stop": [*HALVING, "scheduler.variant=stop"],
    "promote": [*HALVING, "scheduler.variant=promote"],
}


def run(root: Path, scheduler: str, seed: int) -> dict[str, float]:
    """Run one study and return its figures."""
    name = f"{scheduler}-{seed}"
    overrides = [f"name={name}", f"seed={seed}", f"storage.path={root}", *SCHEDULERS[scheduler]]
    started = time.monotonic()
    run_sweep(SweepSpec.from_yaml(SPEC, overrides=overrides))
    seconds = time.monotonic() - started
    result = load_sweep(name, root=root)
    best = result.best()
    account = result.claims.account
    return {
        "configurations": len(result.results),
        "finished": result.view.count(TrialState.FINISHED),
        "best validation": best.value or 0.0,
        "its test": best.metrics["test/accuracy"],
        "budget used": max(account.committed.values()) / account.composition.budget,
        "order": account.composition.order,
        "seconds": seconds,
    }


def main() -> None:
    """Print one row per study and the two counts that matter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    num_seeds = parser.parse_args().seeds
    wins, doubled = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(num_seeds):
            rows = {name: run(Path(folder), name, seed) for name in SCHEDULERS}
            for name, row in rows.items():
                figures = (f"{key}={value:.4g}" for key, value in row.items())
                print(f"seed {seed} {name:8}", *figures, flush=True)
                fifo = rows["fifo"]
                wins[name] += row["best validation"] >= fifo["best validation"]
                doubled[name] += row["configurations"] >= 2 * fifo["configurations"]
    for name in ("stop", "promote"):
        print(
            f"epsilon_halving, {name}: at least as good as fifo on {wins[name]} of {num_seeds} "
            f"seeds, at least twice as many configurations on {doubled[name]}"
        )


if __name__ == "__main__":
    main()

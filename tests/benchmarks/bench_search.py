"""What pruning by epsilon buys: fifo against epsilon_halving under one study budget, paired seeds.

Both spend at most the same (study_epsilon, delta), guaranteed by the same kind of filter, draw the
same configurations in the same order, and are scored on the same public validation records.

python tests/benchmarks/bench_search.py [--seeds 5] [--json]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tables import Table, show

from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.composition.renyi_filter import RenyiFilter
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
    rule = account.composition
    if not isinstance(rule, RenyiFilter):
        raise BadInputError(f"{name} has no Renyi filter", fix=f"leave {SPEC.name} as it is")
    return {
        "configurations": len(result.results),
        "finished": result.view.count(TrialState.FINISHED),
        "best validation": best.value or 0.0,
        "its test": best.metrics["test/accuracy"],
        "budget used": max(account.committed.values()) / rule.budget,
        "order": rule.order,
        "seconds": seconds,
    }


def table(studies: list[dict[str, dict[str, float]]]) -> Table:
    """Return a row for each seed, and how often halving was as good and tried twice as many."""
    rows = []
    for seed, by_name in enumerate(studies):
        cells = [str(seed)]
        for name, row in by_name.items():
            finished = "" if name == "fifo" else f" ({row['finished']})"
            cells.append(f"{row['configurations']}{finished}, {row['best validation']:.4f}")
        rows.append(tuple(cells))
    counts = []
    for name in ("stop", "promote"):
        pairs = [(by_name[name], by_name["fifo"]) for by_name in studies]
        wins = sum(own["best validation"] >= fifo["best validation"] for own, fifo in pairs)
        twice = sum(own["configurations"] >= 2 * fifo["configurations"] for own, fifo in pairs)
        counts.append(f"`{name}` on {wins} and {twice}")
    return Table(
        (
            "seed",
            "fifo: configurations, best",
            "stop: configurations (finished), best",
            "promote: configurations (finished), best",
        ),
        tuple(rows),
        note=f"At least as good as `fifo`, and at least twice as many configurations, of "
        f"{len(studies)} seeds: {', '.join(counts)}.",
    )


def main() -> None:
    """Print a table of one row for each seed, and a line for each study as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    studies: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            studies.append({})
            for name in SCHEDULERS:
                row = studies[seed][name] = run(Path(folder), name, seed)
                figures = (f"{key}={value:.4g}" for key, value in row.items())
                print(f"seed {seed} {name:8}", *figures, file=sys.stderr, flush=True)
    show([table(studies)], {"studies": studies}, as_json=options.json)


if __name__ == "__main__":
    main()

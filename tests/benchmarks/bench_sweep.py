"""Whole sweeps, from the key press to the prompt, against the same work wired by hand.

Ours keeps its ledger, its scheduler and its journal in every row; rows say what else is on. The
commands take turns; printed are medians of wall seconds, the load of the machine beside them.

python tests/benchmarks/bench_sweep.py [--trials 8] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
OURS = [str(Path(sys.executable).with_name("dpsweep")), "run", str(HERE / "sweep.yaml")]
PEER = [sys.executable, str(HERE / "peer_sweep.py"), "--out", "."]
REUSE, STOCK = "peer, reuse_actors, no MLflow", "peer, stock"
COMMANDS = {
    "dpsweep run": OURS,
    "dpsweep run, no pictures": [*OURS, "--set", "tracking.pictures=false"],
    "dpsweep run, no tracking": [*OURS, "--set", "tracking.uri=null"],
    REUSE: [*PEER, "--reuse-actors", "--no-mlflow"],
    STOCK: PEER,
}


def seconds(command: list[str]) -> float:
    """Return the wall time of a command in a folder of its own."""
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.perf_counter() - begin


def main() -> None:
    """Run all in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    loads = []
    for _ in range(options.rounds):
        for name, command in COMMANDS.items():
            number = str(options.trials)
            ours = command[0] == OURS[0]
            more = ["--set", f"search.num_trials={number}"] if ours else ["--trials", number]
            loads.append(os.getloadavg()[0])
            times[name].append(seconds([*command, *more]))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{options.trials} trials, {options.rounds} rounds, load {min(loads):.1f} to "
          f"{max(loads):.1f} on {os.cpu_count()} cores")  # fmt: skip
    for name, value in median.items():
        every = ", ".join(f"{one:.1f}" for one in times[name])
        print(f"{name:32} {value:6.1f} s   {value / median[STOCK]:.2f} of stock   "
              f"{value / median[REUSE]:.2f} of reused   ({every})")  # fmt: skip


if __name__ == "__main__":
    main()

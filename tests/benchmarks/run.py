"""Every benchmark, one after the other: ``make bench``, ``make bench-gpu``.

Each measures against its peers in the same process and prints ratios; seconds belong to the
machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from machine import machine_line

HERE = Path(__file__).parent


def main() -> None:
    """Run the benchmarks of a device; stop at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    commands = [
        ["bench_linear_head.py", "--device", device],
        ["bench_many_heads.py", "--device", device],
        ["bench_adamix.py", "--device", device],
        ["bench_bitfit.py", "--device", device],
        ["bench_sparse.py", "--device", device],
        ["bench_networks.py", "--device", device, *(["--small"] if device == "cpu" else [])],
    ]
    print(machine_line(device), flush=True)
    if device == "cpu":
        commands += [["bench_accounting.py"], ["bench_sweep.py"], ["bench_search.py"]]
    for script, *arguments in commands:
        print(f"== {script}", flush=True)
        subprocess.run([sys.executable, HERE / script, *arguments], check=True)


if __name__ == "__main__":
    main()

"""Guards of the ratios that BENCHMARKS.md has, in three minutes: ``make bench-quick``.

Sizes are small and rounds are few, so limits are loose: they are passed by what is slow, not by a
busy moment. Exit status 1 if one is.

python tests/benchmarks/quick.py
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

import bench_accounting
import bench_adamix
import bench_linear_head
import bench_sweep
import numpy as np

from dpsweep.privacy.clock import EpsilonClock
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian

#: What is compared, its ratio, and the limit that it has to stay below.
Guard = tuple[str, float, float]


def heads() -> Iterator[Guard]:
    """A step of a linear head by closed form, against Opacus."""
    times = bench_linear_head.measure(
        records=20_000, features=1280, batch=2048, rounds=3, steps=3
    )  # fmt: skip
    closed = times["closed form"]
    yield "linear head, closed form against Opacus hooks", closed / times["Opacus hooks"], 0.12
    yield "linear head, closed form against ghost clipping", closed / times["Opacus ghost"], 0.9


def full_batches() -> Iterator[Guard]:
    """A step of AdaMix with a fresh projection."""
    times = bench_adamix.measure(
        private=2_000, public=200, features=1024, classes=20, rounds=3, steps=3
    )  # fmt: skip
    step = times["closed form, adaptive clip, projection"]
    yield "AdaMix with its projection against plain torch", step / times["non-private torch"], 2.0
    yield "AdaMix with its projection against Opacus hooks", step / times["Opacus hooks"], 0.1


def accounting() -> Iterator[Guard]:
    """Clock and privacy loss distributions against Opacus and dp_accounting."""
    noise = np.linspace(1.0, 0.5, 100)
    plan = Plan(tuple(EventRun(PoissonGaussian(float(s), bench_accounting.RATE)) for s in noise))

    def clock() -> object:
        return EpsilonClock(plan, delta=bench_accounting.DELTA).table()

    ours = cpu_seconds(clock)
    opacus = cpu_seconds(lambda: bench_accounting._opacus(noise))
    yield "clock of 100 multipliers against Opacus, once", ours / opacus, 0.02
    trials = bench_accounting.mixed_trials()
    mixed = Plan(tuple(EventRun(PoissonGaussian(s, q), n) for s, q, n in trials))
    ours = cpu_seconds(lambda: bench_accounting._pld(mixed))
    google = cpu_seconds(lambda: bench_accounting._google_pld(trials))
    yield "pld of 20 mixed trials against dp_accounting", ours / google, 0.5


def sweeps() -> Iterator[Guard]:
    """Eight trials from the key press to the prompt, without tracking."""
    ours = bench_sweep.seconds(bench_sweep.COMMANDS["dpsweep run, no tracking"])
    reused = bench_sweep.seconds([*bench_sweep.COMMANDS[bench_sweep.REUSE], "--trials", "8"])
    yield "8 trials against a peer with reused actors, no MLflow", ours / reused, 1.0


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def main() -> None:
    """Print every guard; exit with 1 if one is passed."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    failures = 0
    for group in (heads, full_batches, accounting, sweeps):
        for name, ratio, limit in group():
            failures += ratio > limit
            verdict = "ok" if ratio <= limit else "TOO SLOW"
            print(f"{name:55} {ratio:7.3f}x   <= {limit}   {verdict}", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

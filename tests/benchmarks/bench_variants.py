"""One step of each variant of a method, as a paper's preset runs them: time and peak memory.

A step is all that a trial does between two reports: draw, gradients, clip, noise, update, on the
preset's network and batch, with made-up records. The variants take turns in one process on one
thread; a figure is the median process CPU time of a step. Memory is the peak above model and data,
that of the resident set, each variant alone in a fresh process (Linux).

    python tests/benchmarks/bench_variants.py bu2024/rates_five_classes --by bitfit.variant \
        --values last_layer bitfit full
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from timing import median_ms, steps_of

from dpsweep.planning.preflight import Preflight, preflight
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.search_spaces import preset_spec
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.devices.peaks import resident_bytes
from dpsweep.trainables.execution.memory import keep_freed_memory
from dpsweep.trainables.method import Method, RunContext
from dpsweep.trainables.networks.torch_process import torch_threads

MOST_STEPS = 10_000
NOISE_MULTIPLIER = 1.0
WARM_UP = 8  # records


def trial_of(checked: Preflight, by: str, value: str) -> TrialTask:
    """Return a trial at the first point of a grid that has a variant."""
    for point in checked.space.grid():
        if str(point.get(by)) == value:
            return checked.admit(0, point)
    raise SystemExit(f"no configuration has {by}: {value}")


def made_up(info: DatasetInfo, count: int) -> SweepData:
    """Return as many private records as a batch has, and none of other parts."""
    inputs = np.random.default_rng(0).standard_normal((count, *info.input_shape), dtype=np.float32)
    parts = {part: (inputs[:0], np.arange(0)) for part in ("public", "validation", "test")}
    return SweepData(info, {**parts, "private": (inputs, np.arange(count) % info.num_classes)}, "")


def step_of(checked: Preflight, by: str, value: str) -> Callable[[], None]:
    """Return a function that takes the next step of a variant, after one on a few records."""
    task = trial_of(checked, by, value)
    hparams = dict(task.hparams)
    batch = int(hparams["batch.expected"])
    if hparams["model.checkpoint"] == "pretrain":
        hparams["model.checkpoint"] = None  # other weights take as long
    plan = Plan((
        EventRun(PoissonGaussian(NOISE_MULTIPLIER, WARM_UP / batch), 1),
        EventRun(PoissonGaussian(NOISE_MULTIPLIER, 1.0), MOST_STEPS),
    ))  # fmt: skip
    method: Method = checked.methods[task.method]()
    method.prepare(made_up(checked.info, batch), hparams, plan, RunContext(0, 0))
    method.run(0, 1)
    return steps_of(method, 1)


def peak_bytes(step: Callable[[], None]) -> int:
    """Return the peak memory of three steps above what was there before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    for _ in range(3):
        step()
    return resident_bytes("VmHWM") - before


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("preset")
    parser.add_argument("--by", required=True, help="hyperparameter that tells variants apart")
    parser.add_argument("--values", nargs="+", required=True, help="its values; the last is 1x")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    checked = preflight(read_spec(preset_spec(options.preset)))
    is_kept = keep_freed_memory()  # as trials do
    with torch_threads(1):
        if options.peak_of:
            print(peak_bytes(step_of(checked, options.by, options.peak_of)))
            return
        steps = {value: step_of(checked, options.by, value) for value in options.values}
        times = median_ms(steps, rounds=options.rounds, repeats=lambda _: 1, device="cpu")
    memory = {}
    for value in options.values:
        command = [sys.executable, *sys.argv, "--peak-of", value]
        # Large tensors in pages of their own, which go back when they are freed.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        ran = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        memory[value] = int(ran.stdout.split()[-1]) / 2**20
    last = options.values[-1]
    batch = trial_of(checked, options.by, last).hparams["batch.expected"]
    kept = "kept" if is_kept else "as the environment says"
    print(f"{options.preset}, batch {batch}, 1 thread, freed memory {kept}")
    print(f"{options.by:<20}{'ms/step':>10}{'ratio':>10}{'extra MiB':>12}{'ratio':>10}")
    for value in options.values:
        ratio, share = times[value] / times[last], memory[value] / memory[last]
        print(f"{value:<20}{times[value]:>10.0f}{ratio:>9.3f}x{memory[value]:>12.0f}{share:>9.3f}x")


if __name__ == "__main__":
    main()

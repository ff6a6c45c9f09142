"""Times and memory of steps, measured alike by every benchmark."""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from dpsweep.trainables.devices.peaks import PeakMeter
from dpsweep.trainables.method import Method
from dpsweep.trainables.networks.torch_process import torch_threads

Key = TypeVar("Key", str, int)


def seconds(device: str) -> float:
    """Return a moment: of this process's CPU time, or on CUDA of wall time."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def median_ms(
    variants: Mapping[Key, Callable[[], object]],
    *,
    rounds: int,
    repeats: Callable[[Key], int],
    device: str,
    slow: Key | None = None,
) -> dict[Key, float]:
    """Return the median milliseconds of a step of each variant, on one thread, after one to warm up.

    Args:
        variants: Steps by name; they take turns, so that a busy moment hits all of them.
        rounds: Turns.
        repeats: Steps of a variant in one turn.
        device: ``cpu`` or ``cuda``.
        slow: A variant that is left out after its second turn.
    """
    times: dict[Key, list[float]] = {name: [] for name in variants}
    with torch_threads(1):
        for step in variants.values():
            step()
        for number in range(rounds):
            for name, step in variants.items():
                if name == slow and number > 1:
                    continue
                begin = seconds(device)
                for _ in range(repeats(name)):
                    step()
                times[name].append((seconds(device) - begin) / repeats(name) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def steps_of(method: Method, position: int = 0) -> Callable[[], None]:
    """Return a function that takes the next step of a prepared method, from a position on."""

    def step() -> None:
        nonlocal position
        method.run(position, position + 1)
        position += 1

    return step


def peak_of(step: Callable[[], None], device: str, steps: int = 3) -> int:
    """Return the peak memory in bytes of some steps above what was there before."""
    meter = PeakMeter(device)
    for _ in range(steps):
        step()
    return meter.peak().allocated


def peaks_alone(
    command: Sequence[str], variants: Iterable[str], device: str, repeats: int
) -> dict[str, float]:
    """Return the median peak in MiB of each variant; empty where it is not measurable.

    Args:
        command: A script and its arguments; with ``--peak-of VARIANT`` it prints bytes last. Each
            variant has processes of its own: what torch loads and keeps is not shared.
        variants: Their names.
        device: ``cpu`` or ``cuda``.
        repeats: Processes of each.
    """
    if device == "cpu" and not Path("/proc/self/clear_refs").exists():
        return {}
    # Large tensors in pages of their own, which go back when they are freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    names = list(variants)
    outputs = outputs_of(
        (
            [sys.executable, *command, "--device", device, "--peak-of", name]
            for name in names
            for _ in range(repeats)
        ),
        device,
        environment,
    )
    peaks = [int(output.split()[-1]) / 2**20 for output in outputs]
    return {
        name: statistics.median(peaks[place * repeats : (place + 1) * repeats])
        for place, name in enumerate(names)
    }


def outputs_of(
    commands: Iterable[Sequence[str]], device: str, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return what commands print that measure memory, in their order.

    On a GPU, where torch counts what its own process takes, a few of them run at once.
    """
    run = functools.partial(
        subprocess.run, check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    with ThreadPoolExecutor(1 if device == "cpu" else min(4, os.cpu_count() or 1)) as pool:
        return [done.stdout for done in pool.map(run, commands)]

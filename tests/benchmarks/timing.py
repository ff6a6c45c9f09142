"""Times and memory of steps, measured alike by every benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from dpsweep.trainables.method import Method

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
    """Return the median milliseconds of a step of each variant, after one step to warm up.

    Args:
        variants: Steps by name; they take turns, so that a busy moment hits all of them.
        rounds: Turns.
        repeats: Steps of a variant in one turn.
        device: ``cpu`` or ``cuda``.
        slow: A variant that is left out after its second turn.
    """
    times: dict[Key, list[float]] = {name: [] for name in variants}
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


def resident_bytes(field: str) -> int:
    """Return a field of this process's status (Linux), as VmRSS or VmHWM, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)

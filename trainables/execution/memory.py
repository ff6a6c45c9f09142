"""Memory of a trial's process: what it took, what is kept, what is done where none is left."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import sys
import time
from contextlib import suppress

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.records import checked_json, read_checked_json
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.devices.peaks import forget_peak, resident_bytes
from dpsweep.trainables.devices.sharing import MIB

MEMORY_ADVICE = "fix: lower batch.physical or search.max_concurrent, or raise resources"
#: In a trial's folder, once it has run out of memory: at which step, and what it goes on with.
SMALLER = "smaller-batch.json"
_PHYSICAL = "batch.physical"
#: A batch in memory is this many times smaller afterwards: there is one more try, not a search.
_TIMES = 4

# Parameters of mallopt, from glibc's <malloc.h>.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_MOST = 2**31 - 1  # bytes; an int in C


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next tensors.

    glibc gives large blocks back to the system as soon as they are free. A step of training
    allocates the same activations again, and the kernel has to find and clear pages for them each
    time. Afterwards the process does not shrink: it stays as large as it ever was, and some of that
    is fragments. It holds until the process ends.

    Nothing is changed where the C library is not glibc, or where the environment already says what
    malloc is to do (``MALLOC_...``, ``GLIBC_TUNABLES``).

    Returns:
        Whether memory is kept from now on.
    """
    has_own = any(name.startswith("MALLOC_") for name in os.environ)
    if not sys.platform.startswith("linux") or has_own or "GLIBC_TUNABLES" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _MOST) and mallopt(_MMAP_MAX, 0))


def make_smaller(directory: FilePath, task: TrialTask, step: int) -> bool:
    """Note durably that a trial goes on with fewer examples in memory, and free what can be freed.

    The plan, the logical batch and the noise do not depend on how many examples are in memory at
    once, so no epsilon changes. A trial gets this once, whatever process it runs in.

    Args:
        directory: The trial's.
        task: As it was admitted.
        step: Where it ran out of memory.
    Returns:
        False, and nothing is noted, if there is no smaller batch, or this one was smaller already.
    Raises:
        StorageError: It cannot be written down.
    """
    physical = task.hparams.get(_PHYSICAL)
    if physical is None or (directory / SMALLER).exists():
        return False
    # More than the expected batch is never in memory, whatever was allowed.
    at_once = min(int(physical), int(task.hparams.get("batch.expected") or physical))
    smaller = max(1, at_once // _TIMES)
    if smaller == int(physical):
        return False
    write_atomically(directory / SMALLER, checked_json({_PHYSICAL: smaller, "step": step}))
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return True


def as_it_fits(directory: FilePath, task: TrialTask) -> tuple[TrialTask, str]:
    """Return a task as its process can hold it, and a line on that if it is not the admitted one.

    A note that is damaged counts as none: the trial would run out of memory again, and end.
    """
    try:
        noted = read_checked_json(read_file(directory / SMALLER), known=())
        smaller, step = int(noted[_PHYSICAL]), int(noted["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return task, ""
    note = (
        f"out of memory at step {step}; it goes on with {_PHYSICAL}={smaller} instead of "
        f"{task.hparams[_PHYSICAL]}, with the same batch and epsilon; steps that were charged and "
        "lost stay spent"
    )
    return dataclasses.replace(task, hparams={**task.hparams, _PHYSICAL: smaller}), note


class Usage:
    """Time and peak memory since a trial began in this process, where they may be told.

    A process serves one trial after another, so its peak is set back when one begins. Linux counts
    the pages of the whole process, the interpreter and torch among them; on a GPU it is what torch
    had allocated there.

    Guarantees:
        Both are 0 unless they may be told: they tell of the sizes of batches.

    Args:
        device: ``cpu`` or ``cuda``.
        is_told: Whether they may leave the process.
    """

    def __init__(self, device: str, *, is_told: bool) -> None:
        self._device, self._is_told = device, is_told
        self._started = time.monotonic()
        if is_told:
            with suppress(OSError):  # then the peak is that of the process so far, no less
                forget_peak(device)

    @property
    def wall_s(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._started if self._is_told else 0.0

    @property
    def memory_mb(self) -> float:
        """Peak so far in MiB; 0 also where the system does not say."""
        return _peak_mb(self._device) if self._is_told else 0.0


def _peak_mb(device: str) -> float:
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None:
        return float(torch.cuda.max_memory_allocated()) / MIB
    try:
        return resident_bytes("VmHWM") / MIB
    except (OSError, KeyError):
        return 0.0

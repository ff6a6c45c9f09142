"""Peak memory of a process: of a GPU what torch allocates, on the CPU what the system counts."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpsweep.trainables.devices.sharing import CONTEXT_BYTES, with_margin

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory of some work, in bytes.

    Attributes:
        device: ``cpu`` or ``cuda``.
        allocated: By how much tensors grew on a GPU; by how much the process grew on the CPU.
        reserved: What torch's allocator held for them meanwhile; on the CPU the same.
        context: What the process has besides: on a GPU ``sharing.CONTEXT_BYTES``; on the CPU what
            it had before, less pages of files, such as libraries, which processes share.
    """

    device: str
    allocated: int
    reserved: int
    context: int

    @property
    def whole(self) -> int:
        """What the process took in all."""
        return self.context + self.reserved

    @property
    def need(self) -> int:
        """What a trial like this should have, with a margin.

        Of a GPU it is counted from what is allocated: an allocator at its limit gives back what it
        only holds.
        """
        return with_margin(self.context, self.allocated)


class PeakMeter:
    """Meter of the peak memory of this process, from now on.

    What was freed before is given back first, as far as it can be: work that takes it again would
    otherwise be seen to need less.

    Args:
        device: ``cpu`` or ``cuda``; the latter loads torch.
    Raises:
        OSError: This system does not let the peak be set back (it is Linux that does).
    """

    def __init__(self, device: str) -> None:
        self._device = device
        if device == "cuda":
            import torch

            _give_back()
            self._before = int(torch.cuda.memory_allocated())
            self._held = int(torch.cuda.memory_reserved())
        else:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:  # glibc
                trim(0)
        forget_peak(device)
        if device != "cuda":
            self._before, self._own = resident_bytes("VmRSS"), resident_bytes("RssAnon")

    def peak(self) -> PeakMemory:
        """Return the peak so far, above what there was when the meter was made."""
        if self._device == "cuda":
            import torch

            allocated = int(torch.cuda.max_memory_allocated()) - self._before
            reserved = int(torch.cuda.max_memory_reserved()) - self._held
            return PeakMemory("cuda", allocated, reserved, CONTEXT_BYTES)
        grown = max(resident_bytes("VmHWM") - self._before, 0)
        return PeakMemory("cpu", grown, grown, self._own)


@contextmanager
def freed_afterwards(device: str) -> Iterator[None]:
    """Give back what torch has kept on a GPU within this block; nothing on the CPU.

    CUDA's own context, some hundred MiB, stays until the process ends.
    """
    try:
        yield
    finally:
        if device == "cuda":
            _give_back()


def _give_back() -> None:
    """Give back to the GPU what torch only keeps, also for what ties itself together."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def forget_peak(device: str) -> None:
    """Set back the peak that the system, or torch on a GPU, counts of this process.

    Raises:
        OSError: This system does not do it.
    """
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None:
        torch.cuda.init()  # before it there is no allocator whose peak could be set back
        torch.cuda.reset_peak_memory_stats()
        return
    _CLEAR.write_text("5")  # see proc(5): the peak of resident memory


def resident_bytes(field: str) -> int:
    """Return a field of this process's status (Linux), as VmRSS or VmHWM, in bytes.

    Raises:
        OSError: There is no such file: this is not Linux.
        KeyError: It has no such field.
    """
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)

"""Shares of a GPU: how much memory each stands for, and how many trials fit on one.

Ray counts fractions of a GPU and limits nothing. Here a process of a trial is held to its share, so
that a trial that needs more runs out of memory by itself and takes none from its neighbours.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpsweep.foundation.errors import ResourceError

MIB = 2**20
#: Of each process on a GPU, beside what torch allocates there: the CUDA context, and the code of
#: kernels and libraries. It is under no limit, so it is counted as a round figure that is more than
#: it takes: an H200 showed 763 MiB. ``test_on_a_gpu.py`` holds it to that where there is a GPU.
CONTEXT_BYTES = 1024 * MIB
#: Times the measured peak, of what a trial should have: batches vary, and so do fragments.
MARGIN = 1.25
#: Records are kept on the GPU if they take up to this part of what the process may allocate there.
DATA_PART = 4
_PARTS = 10_000  # Ray counts a resource in ten-thousandths

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class Gpu(Protocol):
    """Memory of one GPU, as a process sees it; all in bytes."""

    def total(self) -> int:
        """Return what the GPU has."""

    def free(self) -> int:
        """Return what no process has."""

    def fraction(self) -> float:
        """Return which part of ``total`` torch may allocate in this process."""

    def set_fraction(self, fraction: float) -> None:
        """Let torch allocate no more than a part of ``total`` in this process."""


class TorchGpu:
    """A GPU of this process (``cuda``: the current one)."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device

    def _index(self) -> int:
        """Return its number: torch's limits do not take ``cuda`` for the current one."""
        import torch

        index = torch.device(self._device).index
        return int(torch.cuda.current_device()) if index is None else index

    def total(self) -> int:
        """Return what the GPU has."""
        import torch

        return int(torch.cuda.mem_get_info(self._index())[1])

    def free(self) -> int:
        """Return what no process has, and what torch has kept in this one for its next tensors."""
        import torch

        index = self._index()
        kept = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        return int(torch.cuda.mem_get_info(index)[0]) + int(kept)

    def fraction(self) -> float:
        """Return which part of ``total`` torch may allocate in this process."""
        import torch

        return float(torch.cuda.get_per_process_memory_fraction(self._index()))

    def set_fraction(self, fraction: float) -> None:
        """Let torch allocate no more than a part of ``total`` in this process."""
        import torch

        torch.cuda.set_per_process_memory_fraction(fraction, self._index())


def visible_gpu() -> Gpu | None:
    """Return the GPU that torch uses in this process, or None. Loads torch."""
    import torch

    return TorchGpu() if torch.cuda.is_available() else None


def allowed_bytes(share: float, total: int) -> int:
    """Return how much torch may allocate in a process that has a share of a GPU.

    >>> allowed_bytes(0.5, 16 * 1024 * MIB) // MIB
    7168

    Args:
        share: In (0, 1).
        total: Bytes of the GPU.
    Raises:
        ResourceError: The share is not more than a process takes before it allocates anything.
    """
    allowed = int(share * total) - CONTEXT_BYTES
    if allowed > 0:
        return allowed
    raise ResourceError(
        f"a share of {share:g} of this GPU is too small for a trial",
        because=f"it is {int(share * total) // MIB} MiB of {total // MIB} MiB, and a process takes "
        f"{CONTEXT_BYTES // MIB} MiB before it allocates anything",
        fix="raise resources.gpu",
    )


def hold_to_share(share: float, gpu: Gpu) -> None:
    """Let this process allocate no more of its GPU than its share, from now on.

    Whole GPUs are shared with nobody: nothing is limited.

    Raises:
        ResourceError: See ``allowed_bytes``.
    """
    if 0 < share < 1:
        total = gpu.total()
        gpu.set_fraction(allowed_bytes(share, total) / total)


def is_kept_there(num_bytes: int, gpu: Gpu) -> bool:
    """Say whether records of this size are kept on the GPU, instead of moved batch by batch.

    They are if they take up to a quarter of what the process may allocate. In a process that is
    held to a share, that is the same whoever came first. With a whole GPU it is what is free.
    """
    fraction = gpu.fraction()
    most = fraction * gpu.total() if fraction < 1 else gpu.free()
    return num_bytes <= most / DATA_PART


@dataclass(frozen=True)
class Packing:
    """How many trials fit on one GPU, and with which share.

    Attributes:
        trials: As many as fit, at least 1.
        share: For ``resources.gpu``: 1 / ``trials``, in steps that Ray can place.
    """

    trials: int
    share: float


def records_there(records: int, share: float, total: int) -> int:
    """Return the most that records take of a share: they stay there up to a part of it.

    >>> gib = 1024 * MIB
    >>> records_there(2 * gib, 0.5, 80 * gib) // MIB, records_there(20 * gib, 0.5, 80 * gib) // MIB
    (2048, 9984)
    """
    allowed = min(share, 1.0) * total - CONTEXT_BYTES
    return max(0, min(records, int(allowed / DATA_PART)))


def packing(need: int, total: int, records: int = 0) -> Packing | None:
    """Return how trials that need so much are packed; None where not even one fits.

    >>> packing(20 * 1024 * MIB, 80 * 1024 * MIB)
    Packing(trials=4, share=0.25)
    >>> packing(20 * 1024 * MIB, 80 * 1024 * MIB, records=1024 * MIB)
    Packing(trials=3, share=0.3333)

    Args:
        need: Bytes of one trial, context and margin among them, without its records.
        total: Bytes of the GPU.
        records: Bytes of the training records, which stay on the GPU where they are few.
    """
    for trials in range(total // need, 0, -1):
        share = share_of(trials)
        if need + records_there(records, share, total) <= share * total:
            return Packing(trials, share)
    return None


def share_of(trials: int) -> float:
    """Return the largest share with which so many trials are placed on one GPU.

    >>> share_of(2), share_of(3)
    (0.5, 0.3333)
    """
    return max(1, _PARTS // trials) / _PARTS


def with_margin(context: int, allocated: int) -> int:
    """Return what a trial should have: its context, and what it allocates with a margin; bytes."""
    return context + math.ceil(MARGIN * allocated)


def machine_bytes() -> int | None:
    """Return the memory of this machine, or of this container; None where the system is silent."""
    if not sys.platform.startswith("linux"):
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total

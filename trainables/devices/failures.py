"""Failures of a device: that it has no room, and that this process cannot use it any more."""

from __future__ import annotations

import sys

from dpsweep.foundation.errors import SweepError

#: As PyTorch, and what it calls, say that there is no room.
_NO_ROOM = ("can't allocate memory", "out of memory", "Unable to allocate", "ALLOC_FAILED")
#: As they say that a kernel has failed: every later call in the process fails as well.
_BROKEN = ("CUDA error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "CUSOLVER_STATUS_")


class NoRoomError(SweepError):
    """There is no room for a block of records of one size, whatever they are."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether a process or a device has no room for what was asked, as PyTorch says it.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling .."))
    True
    """
    message = str(error)  # looked at and not shown
    is_foreign = not isinstance(error, SweepError)
    is_said = is_foreign and any(word in message for word in _NO_ROOM)
    return isinstance(error, MemoryError) or is_said


def lacks_memory(error: BaseException) -> bool:
    """Say the same of what a trial's code has raised; one that ends itself, or panics, has room."""
    return isinstance(error, Exception) and is_out_of_memory(error)


def has_broken_device(error: BaseException) -> bool:
    """Say whether an error, or what it was raised from, leaves this process without its GPU.

    After an illegal access, say, CUDA answers every call of the process with the same error, so
    whatever runs there next fails, too.

    >>> has_broken_device(RuntimeError("CUDA error: an illegal memory access was encountered"))
    True
    >>> has_broken_device(RuntimeError("CUDA out of memory")), has_broken_device(ValueError("CUDA"))
    (False, False)
    """
    kind = getattr(sys.modules.get("torch"), "AcceleratorError", ())
    seen: BaseException | None = error
    while seen is not None:
        is_said = isinstance(seen, RuntimeError) and any(word in str(seen) for word in _BROKEN)
        if (is_said or isinstance(seen, kind)) and not is_out_of_memory(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False

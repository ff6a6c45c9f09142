"""Allocator of the C library: what it does with memory that torch has freed."""

from __future__ import annotations

import ctypes
import os
import sys

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

"""Contents that take long to make, kept in this user's cache for the next time."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import StorageError
from dpsweep.foundation.file_paths import cache, sha256_of

_OF_COMPILER = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled() -> None:
    """Let torch's compiler keep what it makes in this user's cache, unless a place is named.

    Its own choice is ``/tmp/torchinductor_USER``, which anybody may make first: as a file, and
    ``torch.export`` fails; as a directory, and what lies there is run. Each machine has its own, as
    a home may be shared and what is compiled is for one kind of CPU. Called before it is loaded.
    """
    if not os.environ.get(_OF_COMPILER):
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
        with contextlib.suppress(StorageError):  # without a private place it has torch's
            os.environ[_OF_COMPILER] = str(cache(f"torch-{host}"))


def kept(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Return a content, from this user's cache if it is whole there; kept there otherwise.

    It has its digest before it: a file that is not whole, or cannot be kept, is made again.

    Args:
        kind: Folder of the cache.
        name: Of the file; another content has another name.
        make: Makes it.
    """
    path = _place(kind, name)
    if path is not None:
        with contextlib.suppress(OSError):
            digest, _, content = path.read_bytes().partition(b"\n")
            if digest == sha256_of(content).encode():
                return content
    made = make()
    if path is not None:
        with contextlib.suppress(StorageError):
            write_atomically(path, sha256_of(made).encode() + b"\n" + made)
    return made


def _place(kind: str, name: str) -> Path | None:
    try:
        return cache(kind) / name
    except StorageError:  # no home, or not a private one
        return None

"""The JavaScript of a page that draws charts without a network."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from pathlib import Path

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import StorageError
from dpsweep.foundation.file_paths import cache, sha256_of


def vega_bundle() -> str:
    """Return Vega and vega-embed, as the installed ``vl_convert`` puts them together.

    That takes over a second, so it is kept for the next page in this user's cache, with its digest:
    a file that is not whole, or cannot be kept, is made again.
    """
    import vl_convert

    kept = _place(version("vl-convert-python"))
    if kept is not None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            digest, _, text = kept.read_bytes().decode().partition("\n")
            if digest == sha256_of(text.encode()):
                return text
    made: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    if kept is not None:
        with contextlib.suppress(StorageError):
            write_atomically(kept, f"{sha256_of(made.encode())}\n{made}".encode())
    return made


def _place(number: str) -> Path | None:
    try:
        return cache("vega") / f"{number}.js"
    except StorageError:  # no home, or not a private one
        return None

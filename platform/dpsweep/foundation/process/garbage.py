"""Python's search for garbage in cycles, made seldom where modules are loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: New containers after which the youngest are searched; Python's own number is 700.
SELDOM = 50_000


def search_seldom() -> None:
    """Search for garbage less often in this process, from now on.

    Loading torch, Ray and MLflow makes very many objects and hardly a cycle to clear up, and they
    are searched again and again. At most ``SELDOM`` objects more wait for the
    search, so this is for processes that hold no tensors in cycles, and belong to us.
    """
    gc.set_threshold(SELDOM, *gc.get_threshold()[1:])


@contextmanager
def unsearched() -> Iterator[None]:
    """Search for none meanwhile, then as before; for what makes many objects that stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """Search for none meanwhile, and never again in what is there then: for imports.

    What a process has loaded stays as long as it does. A search of all objects takes .2 s where
    torch is loaded, and hardly any of them is younger.
    """
    with unsearched():
        yield
        gc.freeze()

"""Packages that run their code when something of them is used, not where they are imported."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

#: Attributes that other code looks for in every module, and a module need not have.
_ASKED_OF_ALL = ("__warningregistry__", "__wrapped__", "__test__")


class _Deferred(ModuleType):
    """A package whose code has not run yet; it becomes an ordinary module as it does."""

    def __getattr__(self, name: str) -> Any:
        if name not in _ASKED_OF_ALL:
            _run(self)
        return ModuleType.__getattribute__(self, name)


def _run(package: ModuleType) -> None:
    """Run a package's own code, once; another thread waits until it has.

    Raises:
        Exception: Of that code. It is tried again when something is asked for again.
    """
    spec = package.__spec__
    assert spec is not None
    lock, is_running = spec.loader_state
    with lock:
        if type(package) is not _Deferred or is_running.is_set():
            return  # it has run, or asks for something of itself that is not there yet
        assert spec.loader is not None
        package.__path__ = spec.submodule_search_locations or []
        is_running.set()
        try:
            spec.loader.exec_module(package)
            package.__class__ = ModuleType
        finally:
            is_running.clear()


def defer(name: str) -> None:
    """Let a package run its code when something of it is first used; ``import`` alone is no use.

    One that is loaded, or is not there, stays as it is.

    Args:
        name: Of a package; what it lies in has been imported.
    """
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        return
    package = _Deferred(name)
    package.__spec__, package.__loader__ = spec, spec.loader
    package.__file__, package.__package__ = spec.origin, name
    spec.loader_state = threading.RLock(), threading.Event()
    sys.modules[name] = package
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, package)


@contextmanager
def parts_alone(name: str) -> Iterator[None]:
    """Let modules of a package that is deferred be imported without it, within.

    It must be known that they do without what the package's code prepares, and that this code runs
    when they are there already.
    """
    package = sys.modules.get(name)
    if isinstance(package, _Deferred) and package.__spec__ is not None:
        package.__path__ = package.__spec__.submodule_search_locations or []
    try:
        yield
    finally:
        if isinstance(package, _Deferred):
            vars(package).pop("__path__", None)

"""Packages that run their code when something of them is used, not where they are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import _bootstrap
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Attributes that other code looks for in every module, and a module need not have.
_ASKED_OF_ALL = ("__warningregistry__", "__wrapped__", "__test__")
#: Python's own lock of a module that is loaded: whoever imports it waits, and two who wait for each
#: other are told apart. Private; without it nothing is deferred.
_lock_of: Any = getattr(_bootstrap, "_ModuleLockManager", None)
_specs: dict[str, ModuleSpec] = {}


class _Deferred(ModuleType):
    """A package whose code has not run yet; it becomes an ordinary module as it does."""

    def __getattr__(self, name: str) -> Any:
        if name not in _ASKED_OF_ALL:
            _run(self)
        return ModuleType.__getattribute__(self, name)

    def __dir__(self) -> list[str]:
        _run(self)
        return list(ModuleType.__dir__(self))

    def __setattr__(self, name: str, value: Any) -> None:
        is_part = isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not (is_part or name.startswith("__")):
            _run(self)  # or its code would take back what is set
        ModuleType.__setattr__(self, name, value)


def _run(package: Any) -> None:
    """Run a package's own code, once; another thread waits until it has.

    Raises:
        Exception: Of that code. It is tried again when something is asked for again.
    """
    spec: Any = _specs[package.__name__]
    is_as_deferred = package.__spec__ is spec
    with _lock_of(package.__name__):
        has_run = package.__class__ != _Deferred
        if has_run or getattr(spec, "_initializing", False):
            return  # it has run, or asks for something of itself that is not there yet
        if not is_as_deferred:  # it has been reloaded
            package.__class__ = ModuleType
            return
        before = dict(vars(package))
        package.__path__ = spec.submodule_search_locations
        spec._initializing = True
        try:
            spec.loader.exec_module(package)
        except BaseException:
            vars(package).clear()
            vars(package).update(before)
            raise
        finally:
            spec._initializing = False
        package.__class__ = ModuleType


def defer(name: str) -> None:
    """Let a package run its code when something of it is first used; ``import`` alone is no use.

    One that is loaded, or is not there, stays as it is. One that is there and broken fails at its
    first use, and not at an import that is ready for that. ``vars`` of one shows nothing.

    Args:
        name: Of a package; what it lies in has been imported.
    """
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if _lock_of is None or spec is None or spec.submodule_search_locations is None:
        return
    package = _Deferred(name)
    package.__spec__, package.__loader__ = spec, spec.loader
    package.__file__, package.__package__ = spec.origin, name
    _specs[name] = spec
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
    if isinstance(package, _Deferred):
        package.__path__ = _specs[name].submodule_search_locations or []
    try:
        yield
    finally:
        if isinstance(package, _Deferred):
            vars(package).pop("__path__", None)

"""Imports that may fail, and are tried again."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def load_whole(package: str) -> ModuleType:
    """Import a package; where that fails, leave none of it behind.

    Python forgets the module that failed and keeps those that it had loaded. The next import then
    finds these, which are no attributes of the new one, and fails for good.

    Args:
        package: Its name.
    Raises:
        Exception: Whatever its import raises.
    """
    try:
        return importlib.import_module(package)
    except BaseException:
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]
        sys.modules.pop(package, None)
        raise

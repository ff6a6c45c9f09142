"""Imports that may fail, and are tried again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loaded_whole(package: str) -> Iterator[None]:
    """Import a package within; where that fails, leave none of it behind.

    Python forgets the module that failed and keeps those that it had loaded. The next import then
    finds these, which are no attributes of the new one, and fails for good.

    Args:
        package: Its name.
    """
    try:
        yield
    except BaseException:
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]
        sys.modules.pop(package, None)
        raise

"""Errors that another module raises: whose they are is told by the place that raises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PanicException(BaseException):
    """As a panic of Rust comes out of a package (pyo3): no ``Exception``."""


def raising(error: BaseException, *, module: str) -> Callable[..., Any]:
    """Return a function that raises an error in a module of that name, whatever it is called with.

    >>> raising(ValueError(), module="others.nets").__module__
    'others.nets'
    """
    names: dict[str, Any] = {"__name__": module, "error": error}
    source = "def step(*_, **__):\n    raise error"
    exec(compile(source, f"/somewhere/{module.rpartition('.')[2]}.py", "exec"), names)
    step: Callable[..., Any] = names["step"]
    return step

"""Threads of a process, and optimizers without torch's compiler. Loads torch when it is called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

_METHODS = ("step", "zero_grad", "add_param_group", "state_dict", "load_state_dict")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch, and the products of NumPy, compute with ``count`` threads for a while.

    It holds for the whole process, and for libraries that are loaded already.
    """
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(limits=count):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def uncompiled(optimizer: type[Optimizer]) -> type[Optimizer]:
    """Return an optimizer that computes the same without loading torch's compiler.

    Nothing here is compiled, and each process would wait for the import, which torch's decorators
    of these methods do for the compiler's sake.
    """
    import torch

    own = {name: torch.no_grad()(inspect.unwrap(getattr(optimizer, name))) for name in _METHODS}
    return type(optimizer.__name__, (optimizer,), own)

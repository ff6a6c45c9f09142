"""One way of writing a search space as another one with some parameters changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def changed(space: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space with other domains for some of its parameters.

    >>> changed({"optim.lr": 0.1, "optim.momentum": 0.9}, {"optim__lr": 1, "optim__momentum": None})
    {'optim.lr': 1}

    Args:
        space: Domains by parameter.
        changes: Domains by parameter, with ``__`` for a dot, as keyword arguments need it; None
            leaves the parameter out.
    """
    named = {name.replace("__", "."): domain for name, domain in changes.items()}
    return {name: domain for name, domain in {**space, **named}.items() if domain is not None}

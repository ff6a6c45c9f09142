"""A token of its own for a Ray that nobody else may talk to."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpsweep.cluster.worker import variables

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@contextmanager
def own_token() -> Iterator[None]:
    """Let a Ray that is started meanwhile answer only to a fresh token, and restore the settings.

    Ray listens on all interfaces. Its usual token lies in ``~/.ray``, in a file that whoever may
    enter the home directory can read, and all clusters of a user share it; ``RAY_AUTH_MODE`` can
    turn it off. The fresh one is in the environment of this process and its children only.
    """
    try:
        with variables({_MODE: "token", _TOKEN: secrets.token_hex(32), _PATH: None}):
            _read_again()
            yield
    finally:
        _read_again()


def _read_again() -> None:
    """Let Ray read the variables, which remembers the first that it has seen."""
    # Compiled, so type checkers do not see what it has.
    from ray import _raylet

    raylet: Any = _raylet
    raylet.Config.initialize("")  # first: a thread that still looks for a token must not miss it
    raylet.AuthenticationTokenLoader.instance().reset_cache()

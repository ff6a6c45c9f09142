"""Processes of this package that another one starts."""

from __future__ import annotations

import os
import subprocess
import sys


def start_module(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module as a program, with pipes as its standard input and output.

    It is the copy of this package that runs here, and nothing that lies about in this folder. It
    has a session of its own: Ctrl-C is this process's to answer.

    Args:
        name: The module.
        arguments: Of its command line.
    Raises:
        OSError: There are too many processes, or no memory.
    """
    # Python itself passes over what is no text, and no variable can hold a folder with a separator.
    folders = [each for each in sys.path if isinstance(each, str) and os.pathsep not in each]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", name, *arguments],
        env={**_environment(), **path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """Return this process's environment, which a thread that leaves Ray may change meanwhile."""
    now = ((name, os.environ.get(name)) for name in list(os.environ))
    return {name: value for name, value in now if value is not None}

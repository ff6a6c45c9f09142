"""The end of a process that has loaded much."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process as Python does, but leave its memory to the system.

    Threads are waited for, exit handlers run and what was printed is out. Python would then look
    for garbage in all that torch and MLflow hold, for two seconds.

    Args:
        code: Exit status.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
            stream.flush()
    os._exit(code)

"""Standard streams of a program that was started without them."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Open those of the three standard streams that are closed, on nothing: for a program's start.

    Python has None for them then, and the next file that is opened takes their number.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:  # the lowest number that is free, which is this one
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115

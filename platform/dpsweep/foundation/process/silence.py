"""Silence of libraries while private records are at hand, of which they may tell a single one.

Pillow warns of one image, with the number of its pixels; a tokenizer of the longest text, with its
tokens; libtiff writes lines of its own, in C. None of it is counted by any epsilon.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

#: Python's own number of the standard error of a process, which C writes to.
_STDERR = 2
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Keep warnings, logs and what C writes to stderr from being heard; errors are raised as ever.

    It holds in the whole process, threads that are begun within included. What Python itself writes
    to ``sys.stderr`` is still seen, so that Ctrl-C is answered.
    """
    with _one_at_a_time, warnings.catch_warnings(), _no_logs(), _no_lines_of_c():
        warnings.simplefilter("ignore")
        yield


def fall_silent() -> None:
    """Keep warnings and logs of this process from being heard from now on.

    For processes that train. Their errors are told by themselves, and Ray may send all that they
    write to the screen of whoever has started it.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


@contextlib.contextmanager
def _no_logs() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _no_lines_of_c() -> Iterator[None]:
    """Let C write to nowhere; ``sys.stderr`` writes to where it has written before."""
    with contextlib.ExitStack() as stack:
        try:
            kept, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
        except OSError:  # it is closed, or there are no more numbers of files
            yield
            return
        stack.callback(os.close, kept)
        stack.callback(os.close, nowhere)
        if _is_plain():
            encoding, errors = sys.stderr.encoding, sys.stderr.errors
            same = open(kept, "w", 1, encoding, errors, closefd=False)  # noqa: SIM115
            stack.enter_context(same)
            stack.enter_context(contextlib.redirect_stderr(same))
        stack.callback(os.dup2, kept, _STDERR)
        os.dup2(nowhere, _STDERR)
        yield


def _is_plain() -> bool:
    """Say whether Python writes its errors to where C does: not in a notebook, for example."""
    try:
        sys.stderr.flush()
        return sys.stderr.fileno() == _STDERR
    except (AttributeError, OSError, ValueError):
        return False

"""Silence of libraries while private records are at hand, of which they may tell a single one.

Pillow warns of one image, with the number of its pixels; a tokenizer of the longest text, with its
tokens; libtiff writes lines of its own, in C. None of it is counted by any epsilon.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

#: Python's own number of the standard error of a process, which C writes to.
_STDERR = 2
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Keep warnings, logs and what C writes to stderr from being heard; errors are raised as ever.

    It holds in the whole process, threads that are begun within included. Of errors that nobody can
    catch (in ``__del__``, at the end of a thread) nothing is said. What is written to
    ``sys.stderr`` in Python is still seen, so that Ctrl-C is answered. Where a process has no
    number of a file to spare, C is heard.
    """
    with _one_at_a_time, warnings.catch_warnings(), _no_logs(), _no_hooks(), _no_lines_of_c():
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
def _no_hooks() -> Iterator[None]:
    """Have Python itself say nothing of errors that nobody can catch, with words and all."""
    unraisable, of_thread = _Hook(sys.unraisablehook), _Hook(threading.excepthook)
    sys.unraisablehook, threading.excepthook = unraisable, of_thread
    try:
        yield
    finally:
        if sys.unraisablehook is unraisable:
            sys.unraisablehook = unraisable.before
        if threading.excepthook is of_thread:
            threading.excepthook = of_thread.before
        unraisable.is_silent = of_thread.is_silent = False


class _Hook:
    """Passes Ctrl-C on, and the rest when the silence is over: another hook may have kept it."""

    def __init__(self, before: Callable[[Any], Any]) -> None:
        self.before, self.is_silent = before, True

    def __call__(self, args: Any) -> None:
        if not self.is_silent:
            self.before(args)
        elif args.exc_type is KeyboardInterrupt:
            if args.exc_value is not None:  # which may follow on an error with a record in it
                args.exc_value.__cause__ = None
            self.before(args)


@contextlib.contextmanager
def _no_lines_of_c() -> Iterator[None]:
    """Let C write to nowhere; ``sys.stderr`` writes to where it has written before."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it is closed, or there are no more numbers of files
            _lead_c_nowhere(stack)
        yield


def _lead_c_nowhere(stack: contextlib.ExitStack) -> None:
    """Do so until a stack is left.

    Raises:
        OSError: C writes as ever.
    """
    kept = os.dup(_STDERR)
    stack.callback(os.close, kept)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    stack.callback(os.close, nowhere)
    if _is_plain():
        before = sys.stderr
        encoding = getattr(before, "encoding", None)
        errors = getattr(before, "errors", None) or "backslashreplace"
        same = open(kept, "w", 1, encoding, errors, closefd=False)  # noqa: SIM115
        stack.enter_context(same)
        stream = _Stream(same)
        stack.callback(setattr, stream, "now", before)
        stack.enter_context(contextlib.redirect_stderr(cast(TextIO, stream)))
        stack.callback(_move_crashes, kept, before)
        _move_crashes(_STDERR, stream)
    stack.callback(os.dup2, kept, _STDERR)
    os.dup2(nowhere, _STDERR)


class _Stream:
    """Writes to one stream, later to another: who is imported within may keep ``sys.stderr``."""

    def __init__(self, now: TextIO) -> None:
        self.now = now

    def write(self, text: str) -> int:  # methods of its own, as a handler may keep them, too
        return self.now.write(text)

    def flush(self) -> None:
        self.now.flush()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.now, name)


def _move_crashes(number: int, stream: object) -> None:
    """Have ``faulthandler`` tell where C crashes, places alone, in a stream, if it did in another.

    Of that one the number is given: whoever has it write to a file of his own keeps that.
    """
    if faulthandler.is_enabled() and number in map(_number, gc.get_referents(faulthandler)):
        faulthandler.enable(cast(TextIO, stream))


def _number(stream: Any) -> int | None:
    try:
        return cast(int, stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _is_plain() -> bool:
    """Say whether Python writes its errors to where C does: not in a notebook, for example."""
    try:
        sys.stderr.flush()
        return sys.stderr.fileno() == _STDERR
    except (AttributeError, OSError, ValueError):
        return False

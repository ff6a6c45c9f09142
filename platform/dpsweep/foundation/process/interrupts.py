"""Ctrl-C, kept where Python would lose it.

Python raises it wherever the main thread stands. In a callback of the import system, of which a
command has seconds, or in a destructor, it is printed as ignored and forgotten, and the command
would go on and spend. So it is noted, and raised again where a command begins its next step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_is_asked = False
_num_held = 0
_has_come_while_held = False
_answer = ""


def note_interrupts() -> bool:
    """Note from now on that Ctrl-C has come, where Python's own handler would only raise it.

    Returns:
        Whether it was Python's own until now.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_plain = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_plain:
        signal.signal(signal.SIGINT, _take)
    return is_plain


def raise_lost() -> None:
    """Raise the interruption that has come, if whatever it met has swallowed it.

    Raises:
        KeyboardInterrupt: It has.
    """
    if _is_asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let a step that takes seconds end before Ctrl-C is raised; a second one is raised at once.

    Libraries that call Python from C++, as torch does while it is imported, end the process by
    SIGABRT where it is raised within.

    Raises:
        KeyboardInterrupt: At the end: Ctrl-C has come meanwhile.
    """
    global _num_held, _has_come_while_held, _is_asked
    if not _num_held:
        _has_come_while_held = False
    _num_held += 1
    is_alone = note_interrupts()  # in a program of somebody else's
    try:
        yield
    finally:
        has_come = _is_asked
        if is_alone:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _is_asked = False
        _num_held -= 1
        if has_come:  # in the place of another error, too: it would be forgotten
            raise KeyboardInterrupt


@contextlib.contextmanager
def answering(words: str) -> Iterator[None]:
    """Answer Ctrl-C with a line at once, where its end takes seconds."""
    global _answer
    before, _answer = _answer, words
    try:
        yield
    finally:
        _answer = before


def _take(number: int, frame: FrameType | None) -> None:
    global _is_asked, _has_come_while_held
    is_first, _is_asked = not _is_asked, True
    if is_first and _answer:
        with contextlib.suppress(OSError, ValueError):  # not by print, which may be interrupted
            os.write(sys.stderr.fileno(), f"\n{_answer}\n".encode())
    if _num_held and not _has_come_while_held:
        _has_come_while_held = True
        return
    raise KeyboardInterrupt

"""Nothing is heard of libraries while private records are at hand, and all of it afterwards."""

import logging
import os
import subprocess
import sys
import threading
import warnings

import pytest

from dpsweep.foundation.process.silence import fall_silent, unheard

PROGRAM = """
import ctypes, logging, os, sys, threading, warnings
from dpsweep.foundation.process.silence import fall_silent, unheard
def speak(when):
    warnings.warn(f"warning {when}", stacklevel=1)
    logging.getLogger("library").error("log %s", when)
    os.write(2, f"line of C {when}\\n".encode())
    print(f"own words {when}", file=sys.stderr)
warnings.simplefilter("always")
speak("before")
with unheard(), unheard():
    speak("within")
    thread = threading.Thread(target=speak, args=("in a thread",))
    thread.start()
    thread.join()
speak("after")
"""


def said_by(program, **more):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, **more
    )
    return done.stderr


def test_only_what_python_writes_itself_is_heard_within():
    said = said_by(PROGRAM)
    for kind in ("warning", "log", "line of C", "own words"):
        assert f"{kind} before" in said
        assert f"{kind} after" in said
        for when in ("within", "in a thread"):
            assert (f"{kind} {when}" in said) == (kind == "own words")


def test_a_process_without_a_standard_error_reads_on():
    program = "import os; os.close(2)\n" + PROGRAM.partition("def speak")[0]
    program += "with unheard():\n    warnings.warn('w')\nprint('read')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "read\n"


def test_warnings_that_are_errors_elsewhere_are_none_within():
    with unheard():
        warnings.warn("w", stacklevel=1)
    with pytest.raises(UserWarning):
        warnings.warn("w", stacklevel=1)


def test_errors_are_raised_and_all_is_as_before():
    before, filters = os.fstat(2), list(warnings.filters)
    with pytest.raises(ZeroDivisionError), unheard():
        raise ZeroDivisionError
    assert os.path.samestat(before, os.fstat(2))
    assert list(warnings.filters) == filters
    assert logging.root.manager.disable == logging.NOTSET


def test_one_at_a_time():
    """Two that end in another order than they began would leave all silent."""
    entered = threading.Event()

    def other():
        with unheard():
            entered.set()

    thread = threading.Thread(target=other)
    with unheard():
        thread.start()
        assert not entered.wait(0.1)
    thread.join()
    assert entered.is_set()
    assert logging.root.manager.disable == logging.NOTSET


def test_a_process_that_trains_says_nothing_of_libraries():
    said = said_by(PROGRAM.partition("with unheard")[0] + "fall_silent()\nspeak('then')")
    assert "warning before" in said
    assert "log then" not in said
    assert "warning then" not in said
    assert callable(fall_silent)

"""Nothing is heard of libraries while private records are at hand, and all of it afterwards."""

import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest

from dpsweep.foundation.process.silence import unheard

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


BEGIN = PROGRAM.partition("def speak")[0]
DIES = """
class Held:
    def __del__(self):
        raise ValueError("139 pixels of jane-roe")
def work():
    raise ValueError("text of jane-roe")
def die():
    Held()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def test_errors_that_nobody_can_catch_are_not_told_within():
    assert said_by(f"{BEGIN}{DIES}with unheard():\n    die()") == ""
    said = said_by(f"{BEGIN}{DIES}with unheard():\n    pass\ndie()")
    assert "139 pixels of jane-roe" in said
    assert "text of jane-roe" in said


@pytest.mark.parametrize(
    ("module", "hook"), [(sys, "unraisablehook"), (threading, "excepthook")], ids=["sys", "thread"]
)
def test_hooks_pass_ctrl_c_on_and_are_as_before(monkeypatch, module, hook):
    heard = []
    monkeypatch.setattr(module, hook, heard.append)
    before = getattr(module, hook)
    of = {
        kind: SimpleNamespace(exc_type=kind, exc_value=kind())
        for kind in (ValueError, SystemExit, KeyboardInterrupt)
    }
    with unheard(), unheard():
        within = getattr(module, hook)
        for args in of.values():
            within(args)
    assert heard == [of[KeyboardInterrupt]]
    assert heard[0].exc_value.__suppress_context__
    assert getattr(module, hook) == before
    within(of[ValueError])  # by a hook of another, set within, that has kept it
    assert heard[1:] == [of[ValueError]]


def test_a_hook_that_was_set_within_stays(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with unheard():
        sys.unraisablehook = mine = print
    assert sys.unraisablehook is mine


def test_who_is_imported_within_is_heard_afterwards():
    program = (
        BEGIN
        + """
with unheard():
    with unheard():
        handler, kept = logging.StreamHandler(), sys.stderr.flush
    log = logging.getLogger("late")
    log.addHandler(handler)
    log.error("log within")
    handler.stream.write("own words within\\n")
handler.flush = kept  # as transformers does
log.error("log after")
assert handler.stream.encoding == sys.stderr.encoding
assert handler.stream.fileno() == 2
"""
    )
    assert said_by(program) == "own words within\nlog after\n"


def test_an_own_stream_for_errors_needs_no_encoding():
    program = (
        BEGIN
        + """
class Own:
    write, flush, fileno = sys.stderr.write, sys.stderr.flush, sys.stderr.fileno
sys.stderr = own = Own()
with unheard():
    print("own words within \\udc80", file=sys.stderr)
    os.write(2, b"line of C within")
assert sys.stderr is own
"""
    )
    assert said_by(program) == "own words within \\udc80\n"


def test_a_process_without_a_number_of_a_file_to_spare_loses_none(monkeypatch):
    numbers, dup = [], os.dup

    def none_left(*args):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", lambda number: numbers.append(dup(number)) or numbers[-1])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", none_left)
        with unheard():
            warnings.warn("w", stacklevel=1)
            assert logging.root.manager.disable == logging.CRITICAL
    (number,) = numbers
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.parametrize("when", ["within", "after"])
@pytest.mark.parametrize("where", ["stderr", "file"])
def test_a_crash_of_c_is_told_by_its_place(tmp_path, when, where):
    file = tmp_path / "crash.log"
    program = f"{BEGIN}import faulthandler\ndef crashes():\n    os.abort()\n"
    if where == "file":
        program += f"file = open({str(file)!r}, 'w')\nfaulthandler.enable(file)\n"
    program += "with unheard():\n    pass\n"
    program += {"within": "with unheard():\n    crashes()", "after": "crashes()"}[when]
    command = [sys.executable, "-X", "faulthandler", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGABRT
    said = {"stderr": done.stderr, "file": file.read_text() if file.exists() else ""}
    assert "in crashes" in said.pop(where)
    assert "in crashes" not in "".join(said.values())


def test_a_process_that_trains_says_nothing_of_libraries():
    said = said_by(PROGRAM.partition("with unheard")[0] + "fall_silent()\nspeak('then')")
    assert "warning before" in said
    assert "log then" not in said
    assert "warning then" not in said
    for kind in ("line of C", "own words"):  # a crash must be seen in Ray's logs
        assert f"{kind} then" in said

"""SIGTERM is Ctrl-C, and a run that does not end after it is ended."""

import signal
import subprocess
import sys
import threading

import pytest

from dpsweep.running import termination
from dpsweep.running.termination import EXIT_CODE, sigterm_as_interrupt


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_is_taken_as_ctrl_c_and_given_back(ctrl_c):
    """Also in a shell's background, where Ctrl-C is ignored."""
    interrupt = signal.signal(signal.SIGINT, ctrl_c)
    try:
        _terminate()
    finally:
        signal.signal(signal.SIGINT, interrupt)


def _terminate():
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_as_interrupt() as asked:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert asked.is_asked
    assert signal.getsignal(signal.SIGTERM) is before
    assert EXIT_CODE == 143


def test_whoever_handles_ctrl_c_gets_it():
    """As Ray Tune does while trials run: it takes note, and ends the run in order.

    A second signal would break that off, and the run ends in time anyhow.
    """
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]


def test_other_threads_change_no_handler():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def elsewhere():
        with sigterm_as_interrupt() as asked:
            seen.append((asked.is_asked, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


@pytest.mark.parametrize("act", ["print('written', flush=True)", "1 / 0"])
def test_a_run_that_hangs_is_ended_after_its_last_act(act):
    """Even if that fails: the status says what has happened."""
    code = f"""
import signal, time
from dpsweep.running import termination
termination.GRACE_S = 0.3
signal.signal(signal.SIGINT, lambda *_: None)  # nobody ends
def last_act():
    {act}
with termination.sigterm_as_interrupt('go on by') as asked, asked.forcing(last_act):
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == EXIT_CODE
    assert done.stderr == "terminated; go on by\n"
    assert ("written" in done.stdout) == ("written" in act)
    assert termination.GRACE_S < 30 - 10  # what kills after SIGTERM waits for half a minute


def test_a_last_act_that_hangs_is_left_behind():
    code = """
import signal, threading, time
from dpsweep.running import termination
termination.GRACE_S = termination.LAST_ACT_S = 0.3
signal.signal(signal.SIGINT, lambda *_: None)
lock = threading.Lock()
lock.acquire()
with termination.sigterm_as_interrupt('go on by') as asked, asked.forcing(lock.acquire):
    signal.raise_signal(signal.SIGTERM)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == EXIT_CODE
    assert termination.GRACE_S + termination.LAST_ACT_S < 30 - 4


@pytest.mark.parametrize("how", ["pass", "1 / 0"])
def test_a_last_act_is_that_of_its_block_alone(how):
    code = f"""
from dpsweep.running import termination
with termination.sigterm_as_interrupt('go on by') as asked:
    try:
        with asked.forcing(lambda: print('written', flush=True)):
            {how}
    except ZeroDivisionError:
        pass
    asked.lose_ray()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_run_that_ends_in_time_is_not_ended_by_force():
    code = """
import signal, time
from dpsweep.running import termination
termination.GRACE_S = 0.3
signal.signal(signal.SIGINT, lambda *_: None)
with termination.sigterm_as_interrupt('go on by') as asked:
    signal.raise_signal(signal.SIGTERM)
time.sleep(1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_ray_that_is_lost_after_sigterm_is_no_error():
    code = """
import signal
from dpsweep.running import termination
signal.signal(signal.SIGINT, lambda *_: None)
with termination.sigterm_as_interrupt('go on by') as asked:
    signal.raise_signal(signal.SIGTERM)
    asked.lose_ray()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (EXIT_CODE, "terminated; go on by\n")


def test_a_lost_ray_is_told_in_a_line():
    code = """
from dpsweep.running import termination
with termination.sigterm_as_interrupt('go on by') as asked, asked.forcing(lambda: print('written')):
    asked.lose_ray()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr == "error: Ray has ended under the study; go on by\n"

"""SIGTERM, which schedulers of clusters send before they kill: treated as Ctrl-C is."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Exit status of a command that SIGTERM has ended, as shells count it.
EXIT_CODE = 128 + signal.SIGTERM
#: Slurm and Kubernetes kill after half a minute; what must be written by then takes seconds.
GRACE_S = 15.0
#: The last act may wait for a disk or a lock that nobody gives back.
LAST_ACT_S = 10.0


class Termination:
    """Whether SIGTERM has come, and what is done if the run does not end in time after it.

    The signal is handed on as Ctrl-C. If Ray's processes have had it too, whatever waits for them
    may wait for a minute: after ``GRACE_S`` the end is written down from another thread, and the
    process ends, ``LAST_ACT_S`` later at most.

    Args:
        again: How to continue, which is said then, on stderr.
    """

    def __init__(self, again: str) -> None:
        self.is_asked, self._again = False, again
        self._last_act: Callable[[], None] = lambda: None
        self._timer: threading.Timer | None = None

    @contextmanager
    def forcing(self, last_act: Callable[[], None]) -> Iterator[None]:
        """Do ``last_act``, from another thread, if the process must end within this block."""
        self._last_act = last_act
        try:
            yield
        finally:
            self._last_act = lambda: None

    def take(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal; once: another one would break off what the first has begun."""
        if self.is_asked:
            return
        self.is_asked = True
        self._timer = threading.Timer(GRACE_S, self._force)
        self._timer.daemon = True
        self._timer.start()
        # Whoever handles Ctrl-C now: Ray Tune while trials run, else Python; or nobody, where a
        # shell has put the command into its background.
        if not callable(signal.getsignal(signal.SIGINT)):
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    def lose_ray(self) -> None:
        """End the process, in another thread: Ray's are gone, and Ray would end it soon."""
        if self.is_asked:
            self._force()
        self._force(1, "error: Ray has ended under the study; " + self._again)

    def _force(self, code: int = EXIT_CODE, words: str = "") -> None:
        with suppress(Exception):  # whatever it is, the process has to end
            print(words or "terminated; " + self._again, file=sys.stderr, flush=True)
        act = threading.Thread(target=self._act, daemon=True)
        act.start()
        act.join(LAST_ACT_S)
        os._exit(code)

    def _act(self) -> None:
        with suppress(Exception):
            self._last_act()

    def end(self) -> None:
        """Give up forcing anything: the run is over."""
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def sigterm_as_interrupt(again: str = "") -> Iterator[Termination]:
    """Treat SIGTERM as Ctrl-C; outside of the main thread, nothing can be done about it.

    Args:
        again: How to continue a run that is ended by force.
    """
    termination = Termination(again)
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return
    before = signal.signal(signal.SIGTERM, termination.take)
    try:
        yield termination
    finally:
        termination.end()
        signal.signal(signal.SIGTERM, before)

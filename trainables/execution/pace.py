"""How much work one charge covers, when a model is kept that no report asks for, and when to leave.

What is charged and not kept yet is lost to a crash or to Ctrl-C: it stays spent. Charging ahead in
small portions and keeping models from time to time bounds that loss by time, whatever the distance
between reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpsweep.foundation.file_paths import FilePath
from dpsweep.study.recall import Recall

#: Seconds of work that one charge covers, about.
CHARGE_S = 5.0
#: Or this many times what charging takes, where that is more (``pld`` with many noise scales).
TIMES_CHARGING = 20.0
#: Seconds after which the model is kept, whether or not there is a report.
KEEP_S = 30.0


class Pace:
    """Measures steps, and says how many fit into one charge.

    Guarantees:
        Nothing about privacy: whatever it says, a step is charged before it is run. Its clock reads
        how long steps on private records take, and so does everybody who watches a trial.

    Args:
        clock: Returns seconds from any fixed moment on.

    >>> moments = iter([0.0, 0.0, 0.1, 0.1, 2.1, 2.1, 31.0])
    >>> pace = Pace(clock=lambda: next(moments))
    >>> pace.steps
    1
    >>> with pace.charging():
    ...     pass
    >>> with pace.running(1):
    ...     pass
    >>> (pace.steps, pace.is_due(), pace.is_due())
    (2, False, True)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept = clock()
        self._charge_s = 0.0
        self.steps = 1  # that the next charge is to cover, at least 1

    @contextmanager
    def charging(self) -> Iterator[None]:
        """Time a charge."""
        begin = self._clock()
        yield
        self._charge_s = self._clock() - begin

    @contextmanager
    def running(self, steps: int) -> Iterator[None]:
        """Time a portion of work, for the size of the next one."""
        begin = self._clock()
        yield
        each = (self._clock() - begin) / steps
        portion = max(CHARGE_S, TIMES_CHARGING * self._charge_s)
        self.steps = max(1, math.floor(portion / each)) if each > 0 else 2 * steps

    def is_due(self) -> bool:
        """Say whether the model was last kept long ago."""
        return self._clock() - self._kept >= KEEP_S

    def kept(self) -> None:
        """Note that the model is on disk now."""
        self._kept = self._clock()


class Left(BaseException):
    """A trial has kept its model and runs nothing more in this process; no error of a method's."""


class Leaving:
    """Says whether the model is to be kept after the charge under way, and nothing more run.

    Args:
        directory: Of the trial, in that of its study.
        word: By which its launch recalls trials.

    Attributes:
        is_told: True once the process was told to leave, by SIGTERM. Ctrl-C recalls all trials.
    """

    def __init__(self, directory: FilePath, word: str) -> None:
        self._recall = Recall(directory.parent.parent, word)
        self.is_told = False

    def is_due(self) -> bool:
        """Say whether to leave now."""
        return self.is_told or self._recall.is_on()

"""Draw a study's pictures and its page, in ``python -m dpsweep.results.page DIRECTORY`` too.

A process of its own, which a launch starts when its last trials are about to end: what is left to
do there keeps one core busy, as this does another. It reads the study's files alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.file_paths import file_path
from dpsweep.foundation.process.leaving import leave
from dpsweep.privacy.accountants import analytic_gaussian_epsilon
from dpsweep.results.page.bundle import vega_bundle
from dpsweep.results.page.html import page_of
from dpsweep.results.pictures.base import Picture, warm
from dpsweep.results.pictures.files import write_pictures
from dpsweep.results.pictures.fonts import is_covered, leave_out_system_fonts
from dpsweep.results.pictures.importance import LEAST
from dpsweep.results.pictures.table import pictures_of
from dpsweep.results.study import SweepResult
from dpsweep.results.trial import TrialResult
from dpsweep.search import importance
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import TrialView


class ResultAtRest(SweepResult):
    """A study whose trials have ended: what it has of each is read once, however often asked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read: dict[int, TrialResult] = {}

    def _result(self, view: TrialView) -> TrialResult:
        if view.trial not in self._read:
            self._read[view.trial] = super()._result(view)
        return self._read[view.trial]


def draw(result: SweepResult) -> None:
    """Write the pictures and the page of a study as it stands.

    Raises:
        SweepError: It cannot be read, or its folder not be written.
    """
    pictures = pictures_of(result)
    write_pictures(pictures, result.files.pictures)
    write_page(result, pictures)


def write_page(result: SweepResult, pictures: Sequence[Picture]) -> None:
    """Write the page of a study, with pictures that are at hand."""
    write_atomically(result.files.page, page_of(result, pictures).encode())


#: Second argument of a process in the place of one that has been asked for the pictures.
_WITH_SYSTEM_FONTS = "with-system-fonts"


def main() -> None:
    """Draw a directory's study as lines on standard input ask for it: its pictures, then its page.

    The second line says how the study ends: its state, and why nothing more was started. What takes
    long to load is loaded before the first line. Pictures are drawn with vl_convert's own fonts;
    where these lack a letter, a process that has the system's takes this one's place. Exit status
    1, and why on standard output, if something fails.
    """
    environment = dict(os.environ)
    has_system_fonts = _WITH_SYSTEM_FONTS in sys.argv[2:]
    if not has_system_fonts:
        leave_out_system_fonts(os.environ)
    try:
        files = StudyFiles.at(file_path(sys.argv[1]))
        prepare(files)
        # Without a buffer: what is not read yet is left to a process in this one's place.
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
            if has_system_fonts or lines.readline():
                pictures = pictures_of(ResultAtRest(files))
                if not has_system_fonts and not all(is_covered(p.words()) for p in pictures):
                    command = [sys.executable, "-m", __package__, sys.argv[1], _WITH_SYSTEM_FONTS]
                    with contextlib.suppress(OSError):  # no memory: a letter is a box then
                        os.execve(sys.executable, command, environment)
                write_pictures(pictures, files.pictures)
            if end := lines.readline():
                result = ResultAtRest(files)
                # The study's end is written once it has its page.
                result.view.state, _, result.view.end_reason = (
                    end.decode(sys.stdin.encoding).strip().partition(" ")
                )
                write_page(result, pictures)
    except Exception as error:
        print(error if isinstance(error, SweepError) else repr(error))
        leave(1)
    leave(0)


def prepare(files: StudyFiles) -> None:
    """Load what draws a study, the forest only if it has the trials for one."""
    if len(files.view().trials) >= LEAST:
        importance.load()
    vega_bundle()
    warm()
    analytic_gaussian_epsilon(1.0, 1e-5)  # the first epsilon loads scipy

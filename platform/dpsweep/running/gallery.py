"""The gallery of a study: what its best model predicts, its pictures, and its page, as files."""

from __future__ import annotations

import contextlib
import subprocess

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.process.starting import start_module
from dpsweep.results.page import drawing
from dpsweep.results.pictures.confusion import keep_confusion
from dpsweep.results.study import OpenStudy
from dpsweep.spec.study import SweepSpec
from dpsweep.study.study import Observer
from dpsweep.trainables.execution.finished.predictions import Shown


def public_part(spec: SweepSpec) -> str | None:
    """Return the part of the records that models may be shown on, or None."""
    if spec.data.test.visibility == "public":
        return "test"
    return "validation" if spec.data.validation.visibility == "public" else None


def keep_shown(study: OpenStudy, trial: int, shown: Shown | None) -> list[FilePath]:
    """Keep the confusion matrix of the best model; return its sheet of examples, if there is one.

    Args:
        study: The study.
        trial: Its best one.
        shown: What that trial's model predicts of the study's ``public_part``.
    """
    if shown is None:
        return []
    if shown.counts is not None:
        keep_confusion(
            study.files, trial=trial, part=shown.part, names=shown.names, counts=shown.counts
        )
    return [] if shown.sheet is None else [shown.sheet]


class Drawing:
    """A study's pictures and its page, drawn by a process of its own.

    The process loads what draws, which takes seconds, and is told when to draw what. It starts when
    it is first asked for something. Whoever makes one closes it.

    Args:
        study: The study, whose trials have ended when something is drawn.
        is_wanted: Whether anything is drawn.
    """

    def __init__(self, study: OpenStudy, *, is_wanted: bool) -> None:
        self._study, self._is_wanted = study, is_wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._has_begun, self._failure = False, ""

    def load(self) -> None:
        """Let what draws be loaded; that it cannot be started is said by ``finish``."""
        if self._process is not None or self._failure or not self._is_wanted:
            return
        folder = str(self._study.files.path)
        try:
            self._process = start_module(drawing.__package__, folder)
        except OSError as error:  # too many processes, or no memory; trials may run yet
            self._failure = f"no process can be started for them ({error})"

    def begin(self) -> None:
        """Let the pictures be drawn, once: what they show is in the study's files."""
        if not self._has_begun:
            self._has_begun = True
            self.load()
            self._ask("the pictures")

    def finish(self, state: str, reason: str, observer: Observer) -> None:
        """Let the page be drawn, which shows how the study has ended, and wait for it all.

        A picture that cannot be drawn is no reason to fail a study that has finished: it is said.
        """
        self.begin()
        if self._process is not None:
            self._ask(f"{state} {reason}")
            words, _ = self._process.communicate()
            if self._process.returncode:
                self._failure = (
                    words.decode(errors="replace").strip()
                    or f"its process ended with {self._process.returncode}"
                )
        if self._failure:
            observer.on_message(f"the study's pictures are not drawn: {self._failure}")

    def _ask(self, what: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has failed, and says why
                self._process.stdin.write(f"{what}\n".encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """End the process, if it still runs: the study's end was interrupted."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def draw_study(study: OpenStudy, observer: Observer | None = None) -> list[str]:
    """Draw a study's pictures and its page here and now; return the files.

    A picture that cannot be drawn is no reason to fail: it is said.
    """
    try:
        drawing.draw(drawing.ResultAtRest.of(study))
    except Exception as error:
        if observer is not None:
            why = str(error) if isinstance(error, SweepError) else repr(error)
            observer.on_message(f"the study's pictures are not drawn: {why}")
    return drawn(study)


def drawn(study: OpenStudy) -> list[str]:
    """Return the pictures and the page that there are."""
    return [str(path) for path in (study.files.pictures, study.files.page) if path.exists()]


def withdraw(study: OpenStudy, reason: str) -> list[str]:
    """Replace whatever says a claim that does not hold any more; return the files.

    Pictures themselves say none; their tables and the page do.
    """
    if not study.files.page.exists():
        return []
    for path in [*study.files.pictures.glob("*.csv"), study.files.page]:
        write_atomically(path, f"withdrawn: {reason}\n".encode())
    return drawn(study)

"""Errors a user can meet: what happened, because of what, and how to fix it."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

#: What a disk says that is full, read-only or broken.
OF_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class SweepError(Exception):
    """A failure with a readable cause and remedy; the command line prints it without a traceback.

    Attributes:
        message: What happened, with the values that were seen.
        because: The values that led to it, or None.
        fix: What the reader can do about it, or None.
        exit_code: Exit status of the command line (docs/commands.md, "Exit codes").
    """

    exit_code = 1

    def __init__(self, message: str, *, because: str | None = None, fix: str | None = None) -> None:
        self.message = message
        self.because = because
        self.fix = fix
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message]
        if self.because:
            lines.append(f"  because: {self.because}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.__dict__))


def _rebuild(cls: type[SweepError], state: dict[str, object]) -> SweepError:
    """Unpickle an error whose constructor takes keyword-only arguments (Ray pickles errors)."""
    error = cls.__new__(cls)
    Exception.__init__(error, state.get("message", ""))
    error.__dict__.update(state)
    return error


class BadInputError(SweepError):
    """The request itself is wrong; nothing was started and nothing was lost."""

    exit_code = 2


class Mistake(NamedTuple):
    """One mistake of a spec: the dotted key that has it, what is wrong, how to fix it.

    Whoever finds a mistake names the key below the part that was looked at; file and line come to
    it once, where it is raised (``at``).
    """

    key: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.what}" + (f" ({self.fix})" if self.fix else "")

    def below(self, above: str) -> Mistake:
        """Return the mistake of a part that stands at the key ``above``.

        >>> Mistake("[0].optim.lr", "is not in the space").below("points_to_evaluate").key
        'points_to_evaluate[0].optim.lr'
        """
        dot = "." if above and self.key and not self.key.startswith("[") else ""
        return self._replace(key=f"{above}{dot}{self.key}")

    def at(self, where: Callable[[str], str]) -> Mistake:
        """Return the mistake with file and line of its key (``SweepSpec.where``)."""
        return self._replace(key=where(self.key))


class SpecError(BadInputError):
    """A sweep spec has mistakes: all of them at once, one line each.

    Args:
        mistakes: The mistakes.
        is_first_look: More is checked once these are mended: what rests on what they are about.
    """

    def __init__(self, mistakes: Sequence[Mistake], *, is_first_look: bool = False) -> None:
        self.mistakes, self.is_first_look = tuple(mistakes), is_first_look
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class DataError(BadInputError):
    """A dataset is missing, unreadable or not as declared."""


class ResourceError(BadInputError):
    """The requested resources cannot be had on this cluster."""


class StudyError(BadInputError):
    """A study directory is missing, locked by another process, or belongs to another spec."""


class DamagedStudyError(StudyError):
    """Files of a study are damaged, lost or closed to this user; what was asked is no mistake."""

    exit_code = 1


class ModelError(BadInputError):
    """A network cannot be trained with per-example gradients as it is."""


class ChangedCodeError(ModelError):
    """The file of a user's own network is not the one that a trial was admitted with."""


class InfeasibleBudgetError(BadInputError):
    """No noise multiplier or number of steps meets the privacy budget."""


class BudgetExceededError(SweepError):
    """A privacy event was refused because it would pass the budget."""


class LedgerError(SweepError):
    """The privacy ledger cannot be trusted or written; nothing private may run."""


class LockedError(LedgerError):
    """Another process writes the file; it may end soon."""


class AbsentLedgerError(LedgerError):
    """A ledger cannot be read now, or is not at its path any more; nobody doubts what it says.

    Nothing was charged or run that is not on record: whoever meets this stops, and no claim ends.
    """


class CheckpointError(SweepError):
    """A checkpoint is missing, or does not match its checksum."""


class StorageError(SweepError):
    """A file cannot be written, on a full disk for example; what was written before holds."""


#: What to do about it.
MAKE_ROOM = (
    "make room, or repair it, and run the same command again; what was charged and written before "
    "is safe"
)

#: What to do where a study's folder is gone while it runs: nobody can call its account safe.
FOLDER_GONE = (
    "put the study's folder back, with its journal and ledger, before you run again: the account "
    "of what was spent is there, and without it the same command begins a new study at zero, on "
    "top of that"
)


class UnreachableError(StorageError):
    """A database does not answer; nothing was lost, and it may come back."""


class RayLostError(SweepError):
    """Ray has ended under a study that runs on it; the study can be continued."""


class FailingSearchError(SweepError):
    """Nearly all trials of a launch have failed; the study can be continued once that is mended."""


class NothingWithinBudgetError(SweepError):
    """No finished trial satisfies the requested bound."""

    exit_code = 3


def described(error: BaseException) -> str:
    """Describe an error without its values: a message may quote private records, a place cannot.

    Errors of dpsweep's own code are written to be shown, so their text is kept; where another
    package has raised one, its text is that package's.
    """
    if is_own(error):
        return str(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return type(error).__name__
    frame, line = frames[-1]
    module, file = _module(frame), Path(frame.f_code.co_filename).name
    place = f"{module.replace('.', '/')}.py" if module.startswith(f"{_OWN}.") else file
    return f"{type(error).__name__} at {place}:{line}"


def is_own(error: BaseException) -> bool:
    """Say whether an error is one of these that dpsweep's own code has raised, or none has yet."""
    is_ours = _is_raised_here(error)
    return isinstance(error, SweepError) and is_ours


def is_failure(error: BaseException) -> bool:
    """Say whether code that was called has failed; else something ends it, and goes through.

    A panic of Rust (pyo3's ``PanicException``) is no ``Exception``, and fails all the same; so does
    code that ends the program. Ctrl-C, a cancellation, and other kinds that nobody knows pass; in a
    trial's process all but ``is_signal`` are failures.

    >>> is_failure(SystemExit(0)), is_failure(KeyboardInterrupt())
    (True, False)
    """
    is_kind = isinstance(error, (Exception, SystemExit)) or type(error).__name__ == _PANIC
    return is_kind and not is_signal(error)


def is_signal(error: BaseException) -> bool:
    """Say whether an error ends what is under way: no code that was called has failed.

    That is Ctrl-C, the end of a generator, and whatever dpsweep raises itself that is no
    ``Exception``: in a handler of SIGTERM, or where a trial leaves its process. What Ray raises to
    end an actor comes by a call of its own, and never within a trial's step.
    """
    if isinstance(error, Exception) or type(error).__name__ == _PANIC:
        return False  # Rust has no frames: a panic may seem to be raised where we called it
    is_of_ours = type(error).__module__.partition(".")[0] == _OWN
    is_raised = error.__traceback__ is not None
    is_end = isinstance(error, (KeyboardInterrupt, GeneratorExit))
    return is_end or is_of_ours or (is_raised and _is_raised_here(error))


def _is_raised_here(error: BaseException) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not frames or _module(frames[-1]).partition(".")[0] == _OWN


_OWN = __name__.partition(".")[0]
_PANIC = "PanicException"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))

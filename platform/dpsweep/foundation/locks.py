"""Exclusive locks on files, which the operating system releases when a process ends."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from dpsweep.foundation.errors import StudyError

#: Whoever asks whether a file is locked has it for a moment: that is no reason to refuse a writer.
_GLANCE_S = 0.2
_LISTED = Path("/proc/locks")


def is_locked(path: Path) -> bool:
    """Say whether a living process holds a ``FileLock`` on ``path``."""
    if not path.exists():
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # of a pipe, too, this returns
    except PermissionError:
        return _is_listed(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _is_listed(path: Path) -> bool:
    """Say whether the kernel's list has a lock on a file that is closed to this user."""
    mark = f":{path.stat().st_ino} "
    rows = _LISTED.read_text().splitlines() if _LISTED.exists() else []
    return any(" FLOCK " in row and mark in row for row in rows)


def take_alone(handle: int) -> None:
    """Lock an open file for this process alone.

    Raises:
        OSError: Another process holds it for longer than ``is_locked`` does.
    """
    deadline = time.monotonic() + _GLANCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_GLANCE_S / 20)


class FileLock:
    """An exclusive lock that the operating system releases when its process ends.

    Its file is the user's own: whoever may read it could hold it.

    Raises:
        StudyError: Another process holds it.
    """

    def __init__(self, path: Path, *, holder: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # It is emptied: no link that somebody has laid there may lead to another file.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            take_alone(self._file)
        except OSError as error:
            noted = os.read(self._file, 300).decode("ascii", "replace")
            os.close(self._file)
            raise _held(path, holder, noted) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _held(path: Path, holder: str, noted: str) -> StudyError:
    """Return the error of a lock that is held: by the process that is noted in it, or another."""
    pid, _, host = noted.strip().partition(" ")
    if pid.isdecimal() and host == socket.gethostname() and not _is_alive(int(pid)):
        return StudyError(
            f"{holder} is held by another process: {path} is locked",
            because=f"process {pid}, which ran it last, is not seen from here: it has ended, and "
            "whoever may read that file may lock it, or it runs in another container",
            fix=f"see who has it open (`fuser -v {path}`), and chmod 600 it",
        )
    where = f" on {host}" if host else ""
    return StudyError(
        f"{holder} is already running" + (f" (process {pid}{where})" if pid else ""),
        fix="wait for it, or stop it with Ctrl-C; `dpsweep status` shows its progress",
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True

"""A directory for a Ray that keeps secrets: nobody else can look into it, and it goes with its run.

/tmp/dpsweep-1a2b3c4d/   mode 0700, though Ray opens the folder that it is given to everybody
  lock                   locked for as long as the process that made the directory lives
  ray/                   Ray's: logs, sockets, what Tune keeps of all trials

The directory is its own record: whichever command comes next finds what a killed process has left,
whatever has become of the study. Its lock is removed last.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsweep.foundation.errors import ResourceError
from dpsweep.foundation.locks import FileLock, is_locked

_PREFIX = "dpsweep-"
_NAME = re.compile(_PREFIX + "[a-z0-9_]{8}")
_LOCK, _STARTING = "lock", "starting"
_YOUNG_S = 60.0
#: Between two looks whether a directory is still used: at first, and at most.
_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2
#: How long Ray's processes, of which some outlive their driver by seconds, are waited for.
PATIENCE_S = 5.0


def place() -> Path:
    """Return where the directories are: short, as the length of a socket's path is limited.

    ``RAY_TMPDIR`` says it, as it does to Ray itself. Links on the way are resolved.
    """
    root = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    return (root if root.is_dir() else Path(tempfile.gettempdir())).resolve()


@contextmanager
def private_directory() -> Iterator[Path]:
    """Give a directory of mode 0700 and remove it, with all that was put into it.

    Guarantees:
        Nobody but its owner can open what is below it, whatever the modes there, or put another
        directory in its place. If this process is killed, ``remove_left_behind`` removes it. Not
        covered: its owner, and root.

    Raises:
        ResourceError: Somebody else could move it, by a directory above it.
    """
    above = place()
    _refuse_movable(above)
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
    lock = FileLock(path / _STARTING, holder=str(path))
    try:
        os.rename(path / _STARTING, path / _LOCK)  # nobody finds it under this name and unlocked
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):  # somebody has cleaned up
            _remove(path, PATIENCE_S)
        lock.release()


def is_private(folder: Path) -> bool:
    """Say by its name whether Ray's folder lies in a private directory.

    >>> is_private(Path("/tmp/dpsweep-1a2b3c4d/ray")), is_private(Path("/tmp/ray"))
    (True, False)
    """
    return any(_NAME.fullmatch(part) for part in folder.parts)


def refuse_open(path: Path) -> None:
    """Refuse a directory that others can open.

    Raises:
        ResourceError: With its mode.
    """
    entry = path.lstat()
    mode = stat.S_IMODE(entry.st_mode)
    is_closed = mode & 0o777 == 0o700  # a set-group-ID bit comes from the directory above
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.geteuid() or not is_closed:
        raise ResourceError(
            f"{path} is not closed to other users",
            because=f"its mode is {mode:o} and its owner {entry.st_uid}; Ray keeps traces of every "
            "trial in it, which accounting select must keep secret",
            fix=f"let {path.parent} be on a file system that keeps modes",
        )


def _refuse_movable(folder: Path) -> None:
    """Refuse a folder in which, or above which, somebody else could rename what is ours.

    Who may write to a directory without the sticky bit, or owns it, may. What is below a directory
    of ours that nobody else can enter is out of reach. Not covered: another way there, as by a
    bind mount.

    Args:
        folder: Without links on the way.
    Raises:
        ResourceError: With the directory.
    """
    own = os.geteuid()
    for path in (*reversed(folder.parents), folder):
        entry = path.stat()
        mode = stat.S_IMODE(entry.st_mode)
        if entry.st_uid == own and not mode & 0o077:
            return
        is_shared = mode & 0o022 and not mode & stat.S_ISVTX
        if not is_shared and entry.st_uid in {0, own, _uid_of_unmapped()}:
            continue
        is_asked = bool(os.environ.get("RAY_TMPDIR"))
        close = f"chmod go-w {path}, or " if is_shared and entry.st_uid == own else ""
        raise ResourceError(
            f"Ray's files are not safe from other users in {folder}",
            because=f"whoever may write to {path} (mode {mode:o}, owner {entry.st_uid}) can put a "
            "directory of theirs in the place of Ray's, which then follows their links",
            fix=close
            + ("unset RAY_TMPDIR" if is_asked else "set RAY_TMPDIR to a directory of your own"),
        )


def _uid_of_unmapped() -> int | None:
    """Return whose every file seems to be that no user of this namespace owns, root's outside too.

    Unprivileged Apptainer shows the machine's ``/`` and ``/tmp`` so. Whose they are cannot be said
    there; None where that id is a user's, too: it is mapped, or all are.
    """
    with contextlib.suppress(OSError, ValueError):  # no /proc
        uid = int(Path("/proc/sys/kernel/overflowuid").read_text())
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        begins = [(int(first), int(length)) for first, _, length in ranges]
        if begins and not any(first <= uid < first + length for first, length in begins):
            return uid
    return None


def remove_left_behind(patience_s: float = 0.0) -> list[Path]:
    """Remove what killed processes of this user have left, and return what would not go.

    The directory of a living process is left alone. One that only Ray's own processes still use is
    emptied; it goes with the first call after their end.

    Args:
        patience_s: How long to wait for their end.
    """
    left = []
    for path in sorted(place().glob(f"{_PREFIX}*")):
        with contextlib.suppress(OSError):  # another process removes it as well
            if _is_ours(path) and _is_left_behind(path) and not _remove(path, patience_s):
                left.append(path)
    return left


def _is_ours(path: Path) -> bool:
    entry = path.lstat()
    is_own = stat.S_ISDIR(entry.st_mode) and entry.st_uid == os.geteuid()
    return is_own and _NAME.fullmatch(path.name) is not None


def _is_left_behind(path: Path) -> bool:
    if (path / _LOCK).exists():
        return not is_locked(path / _LOCK)
    # Its process was killed as it made or removed it; or an earlier version made it, which gave
    # all of it to Ray and kept no lock.
    if time.time() - path.stat().st_mtime < _YOUNG_S or _is_in_use(path):
        return False
    names = {entry.name for entry in path.iterdir()}
    return names <= {_STARTING} or all(name.startswith("session_") for name in names)


def _remove(path: Path, patience_s: float) -> bool:
    """Empty a directory, then remove it, its lock last; say whether it is gone.

    Whoever still uses it may write there again, so it stays, closed to others, until nobody does.
    """
    path.chmod(0o700)
    deadline, pause = time.monotonic() + patience_s, _PAUSE_S
    while True:
        was_in_use = _is_in_use(path)
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK:
                entry.unlink(missing_ok=True)
        if not was_in_use and {entry.name for entry in path.iterdir()} <= {_LOCK}:
            (path / _LOCK).unlink(missing_ok=True)
            path.rmdir()
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _is_in_use(path: Path) -> bool:
    """Say whether another process of this user was started with the path or has a file there.

    Where there is no /proc, none is seen.
    """
    mark, own = os.fsencode(path), str(os.getpid())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is nobody's to look into
            if process.name == own or process.stat().st_uid != os.geteuid():
                continue
            if mark in (process / "cmdline").read_bytes():
                return True
            if any(_target(handle).startswith(mark) for handle in (process / "fd").iterdir()):
                return True
    return False


def _target(handle: Path) -> bytes:
    try:
        return os.fsencode(os.readlink(handle))
    except OSError:  # closed meanwhile
        return b""

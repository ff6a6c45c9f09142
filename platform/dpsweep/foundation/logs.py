"""Logs and locks wherever they lie: in a file, or in a PostgreSQL database.

What ``durable`` promises of files, ``postgres.log`` promises of rows; whoever writes a ledger or a
journal asks here, and does not know which it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpsweep.foundation import locks
from dpsweep.foundation.database_path import DatabasePath, LogPath, is_database_address
from dpsweep.foundation.durable import DurableLog, Log, read_raw
from dpsweep.foundation.file_paths import file_path, on_disk
from dpsweep.foundation.locks import FileLock
from dpsweep.foundation.postgres.log import PostgresLock, PostgresLog
from dpsweep.foundation.postgres.sessions import count_lines, holder_of, read_lines
from dpsweep.foundation.records import NOTHING, Decoded, decode_log, raw_of, unfinished

Lock = FileLock | PostgresLock
_FIRST = b'{"seq":0,'


def open_log(path: LogPath, *, is_shared: bool = False, before: Decoded | None = None) -> Log:
    """Open a log for writing, and make it if it is not there.

    Args:
        path: Of the log.
        is_shared: Others of the user's group may write a new one, if the umask lets them.
        before: ``whole`` of the log when it was open before, which is not decoded again.
    Raises:
        LockedError: It is open for writing elsewhere.
        LedgerError: It is damaged.
        StorageError: It cannot be written now.
    """
    if isinstance(path, DatabasePath):
        return PostgresLog(path, before=before)
    return DurableLog(path, is_shared=is_shared, before=before)


def read_log(path: LogPath) -> list[dict[str, Any]]:
    """Return every record of a log, in order; of one that is not there, none. Needs no lock.

    Raises:
        LedgerError: A record is damaged or missing.
        StorageError: The database does not answer.
    """
    return LogReader(path).read()


class LogReader:
    """Reads a log again and again, and decodes only what has come since.

    Each time it reads all of it, and compares it with what was there before: damage anywhere, or
    another log in its place, is seen as ``read_log`` sees it. A long log would else cost whoever
    asks it once a trial more with every trial.

    Args:
        path: Of the log.
    """

    def __init__(self, path: LogPath) -> None:
        self.path = path
        self._before = NOTHING

    def read(self) -> list[dict[str, Any]]:
        """Return every record, as ``read_log`` does; they are not to be changed."""
        path, where = self.path, str(self.path)
        if isinstance(path, DatabasePath):
            raw = raw_of(read_lines(path))
        else:
            raw = read_raw(path)
        whole = decode_log(raw, where, self._before)
        last, _ = unfinished(raw, whole, where)
        self._before = whole
        return [*whole.records, *last]


def begins_as_log(path: LogPath) -> bool:
    """Say whether a file is empty, or begins as a log does; what is in a database is one.

    So may be one that cannot be opened: whoever reads it says why.
    """
    if isinstance(path, DatabasePath):
        return True
    try:
        if not path.is_file():
            return True
        with path.open("rb") as file:
            return _FIRST.startswith(file.read(len(_FIRST)))
    except OSError:
        return True


def is_locked(path: LogPath) -> bool:
    """Say whether a living process holds the log or the lock at ``path``."""
    if isinstance(path, DatabasePath):
        return holder_of(path) is not None
    return locks.is_locked(path)


def lock(path: LogPath, *, holder: str) -> Lock:
    """Take an exclusive lock that ends with this process, however that ends.

    Args:
        path: Of the lock.
        holder: What is locked, for people.
    Raises:
        StudyError: Another process holds it.
        StorageError: The database does not answer.
    """
    kind = PostgresLock if isinstance(path, DatabasePath) else FileLock
    return kind(path, holder=holder)  # type: ignore[arg-type]


@contextmanager
def as_file(name: str) -> Iterator[Path]:
    """Yield a file that a journal names; for the while one is written of what is not on disk."""
    if not is_database_address(name):
        with on_disk(file_path(name)) as path_on_disk:
            yield path_on_disk
        return
    server, _, key = name.partition("#")
    path = DatabasePath(server, key)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, path.name)
        if path.exists():
            file.write_text("".join(f"{line}\n" for line in read_lines(path)))
        yield file


class Tail:
    """Reads a log that grows, from where it stands, for a reader that skips damaged lines.

    A place in it is an opaque number: bytes of a file, records of a database.
    """

    def __init__(self, path: LogPath) -> None:
        self.path = path

    def size(self) -> int:
        """Return the place behind everything that is there; 0 of a log that is not there."""
        if isinstance(self.path, DatabasePath):
            return count_lines(self.path)
        return self.path.stat().st_size if self.path.exists() else 0

    def lines(self, start: int) -> list[tuple[bytes, int]]:
        """Return the complete lines from a place on, each with the place behind it."""
        if isinstance(self.path, DatabasePath):
            lines = read_lines(self.path, start)
            return [(line.encode(), place) for place, line in enumerate(lines, start=start + 1)]
        return _file_lines(self.path, start)


def _file_lines(path: Path, start: int) -> list[tuple[bytes, int]]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        raw = file.read()
    lines, place = [], start
    for line in raw.split(b"\n")[:-1]:
        place += len(line) + 1
        lines.append((line, place))
    return lines

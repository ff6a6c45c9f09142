"""Files that survive ``kill -9``: append-only checked logs, atomic writes, exclusive locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dpsweep.errors import LedgerError, LockedError, StudyError


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _encode(record: Mapping[str, Any]) -> str:
    body = json.dumps(record, separators=(",", ":"), allow_nan=False)
    return f'{body[:-1]},"crc":"{_checksum(body)}"}}\n'


def _decode(line: str) -> dict[str, Any] | None:
    """Return the record of one complete line, or None if it is damaged."""
    body, found, tail = line.rpartition(',"crc":"')
    if not found or tail != f'{_checksum(body + "}")}"}}':
        return None
    record = json.loads(body + "}")
    return record if isinstance(record, dict) else None


def _scan(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the good records of a log and the byte length they occupy.

    A tail without a newline is an append that never finished, so nothing that waits for an append
    has happened; it is dropped. Damage anywhere else means that history was lost: refused.
    """
    if not path.exists():
        return [], 0
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(raw[:end].decode("utf-8", "replace").split("\n")[:-1], start=1):
        record = _decode(line)
        if record is None or record.get("seq") != number - 1:
            raise LedgerError(
                f"{path}:{number}: record damaged or missing; the log cannot be trusted",
                because="its checksum or its sequence number is wrong",
                fix="restore the file from a backup, or start a new study",
            )
        records.append(record)
    return records, end


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return every record of a log, in order; an append under way is not part of it yet.

    Raises:
        LedgerError: A record is damaged or missing.
    """
    return _scan(path)[0]


class DurableLog:
    """Append-only JSON lines with sequence numbers and checksums; one writer at a time.

    Guarantees:
        When ``append`` returns, the record is on disk (``fsync``). Nothing is ever rewritten: the
        only bytes that are removed are an unfinished last line, whose append never returned.
        A second writer, in this or another process on the machine, is refused.

    Raises:
        LockedError: The file is open for writing elsewhere.
        LedgerError: It is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _make_directory(path.parent)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise LockedError(
                f"{path} is being written by another process",
                fix="wait until it has ended; a trial or study runs once at a time",
            ) from error
        try:
            self.records, end = _scan(path)
        except LedgerError:
            os.close(self._file)
            raise
        if os.fstat(self._file).st_size > end:
            os.ftruncate(self._file, end)
        _sync_directory(path.parent)

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write one record and return it, sequence number included, once it is on disk."""
        numbered = {"seq": len(self.records), **record}
        line = _encode(numbered).encode()
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            what = f"wrote {written} of {len(line)} bytes; disk full?"
            raise OSError(errno.ENOSPC, what, str(self.path))
        os.fsync(self._file)
        self.records.append(numbered)
        return numbered

    def close(self) -> None:
        """Release the file and its lock; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> DurableLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _make_directory(directory: Path) -> None:
    """Make a directory whose entry, and that of each parent it needed, is on disk."""
    if not directory.exists():
        _make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``: a reader sees the old file or the new one, never a part."""
    _make_directory(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def is_locked(path: Path) -> bool:
    """Say whether a living process holds a ``FileLock`` on ``path``."""
    if not path.exists():
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


class FileLock:
    """An exclusive lock that the operating system releases when its process ends.

    Raises:
        StudyError: Another process holds it.
    """

    def __init__(self, path: Path, *, holder: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.read(self._file, 32).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StudyError(
                f"{holder} is already running" + (f" (process {pid})" if pid else ""),
                fix="wait for it, or stop it with Ctrl-C; `dpsweep status` shows its progress",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

"""Files that survive ``kill -9``: append-only checked logs and atomic writes."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.foundation.errors import (
    MAKE_ROOM,
    AbsentLedgerError,
    LedgerError,
    LockedError,
    StorageError,
)
from dpsweep.foundation.file_paths import FilePath, read_file
from dpsweep.foundation.locks import take_alone
from dpsweep.foundation.records import NOTHING, Decoded, decode_log, encode_record, unfinished


def read_raw(path: FilePath) -> bytes:
    """Return what the file of a log holds; of one that is not there, nothing.

    Raises:
        AbsentLedgerError: It cannot be read.
    """
    try:
        return read_file(path)
    except FileNotFoundError:
        return b""
    except OSError as error:
        is_closed = isinstance(error, PermissionError)
        restore = "restore the file from a backup, or start a new study"
        fix = "ask as the user whose study it is" if is_closed else restore
        raise AbsentLedgerError(f"{path} cannot be read: {error.strerror}", fix=fix) from error


def _scan(path: Path, before: Decoded = NOTHING) -> tuple[list[dict[str, Any]], int, Decoded]:
    """Return the good records of a log, the byte length they occupy, and what whole lines say."""
    raw = read_raw(path)
    whole = decode_log(raw, str(path), before)
    last, length = unfinished(raw, whole, str(path))
    return [*whole.records, *last], len(whole.raw) + length, whole


class Log(ABC):
    """An append-only log of numbered records with checksums, open for one writer.

    Attributes:
        records: All that it holds, in order.
        whole: What its whole lines said when it was opened, for whoever opens it again; nothing
            unless it was opened with what they said before.
    """

    records: list[dict[str, Any]]
    whole: Decoded

    @abstractmethod
    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write one record and return it, sequence number included, once it is on disk."""

    @abstractmethod
    def close(self) -> None:
        """Release the log and its lock; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class DurableLog(Log):
    """Append-only JSON lines with sequence numbers and checksums; one writer at a time.

    Guarantees:
        When ``append`` returns, the record is on disk (``fsync``), in the file that is found at
        the path: one that was removed or replaced meanwhile is refused. Nothing is ever rewritten:
        the only bytes that are removed are an unfinished last line, whose append never returned.
        A second writer, in this or another process on the machine, is refused.

    Args:
        path: Of the file.
        is_shared: Let the group write a new one, too, if the umask does.
        before: What it said when it was open before, which is not decoded again.
    Raises:
        LockedError: The file is open for writing elsewhere.
        LedgerError: It is damaged.
        StorageError: It cannot be written.
    """

    def __init__(
        self, path: Path, *, is_shared: bool = False, before: Decoded | None = None
    ) -> None:
        self.path = path
        mode = 0o664 if is_shared else 0o644
        self._one_at_a_time = threading.Lock()
        try:
            _make_directory(path.parent)
            self._file = _open_or_make(path, mode)
        except OSError as error:
            raise _unwritten(path, error) from error
        try:
            take_alone(self._file)
        except OSError as error:
            os.close(self._file)
            raise LockedError(
                f"{path} is being written by another process",
                fix="wait until it has ended; a trial or study runs once at a time",
            ) from error
        try:
            self.records, end, whole = _scan(path, before or NOTHING)
        except LedgerError:
            os.close(self._file)
            raise
        self.whole = NOTHING if before is None else whole
        if os.fstat(self._file).st_size > end:
            os.ftruncate(self._file, end)
        self._end_last_line(end)
        _sync_directory(path.parent)

    def _end_last_line(self, end: int) -> None:
        """Write the newline after the last record, if it has none."""
        if not end or os.pread(self._file, 1, end - 1) == b"\n":
            return
        try:
            os.write(self._file, b"\n")
            os.fsync(self._file)
        except OSError as error:
            os.close(self._file)
            raise _unwritten(self.path, error) from error

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write one record and return it, sequence number included, once it is on disk.

        Raises:
            AbsentLedgerError: The file was removed since it was opened, or a copy of it is in its
                place; nothing was written.
            LedgerError: Another one is in its place; nothing was written.
            StorageError: It is not, and the file is as it was.
        """
        with self._one_at_a_time:
            self._refuse_replaced()
            numbered = {"seq": len(self.records), **record}
            line = encode_record(numbered).encode()
            size = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
                raise _unwritten(self.path, error) from error
            self.records.append(numbered)
        return numbered

    def _refuse_replaced(self) -> None:
        try:
            at_path = os.stat(self.path)
        except FileNotFoundError:
            at_path = None
        if at_path is None or not os.path.samestat(at_path, os.fstat(self._file)):
            is_whole = at_path is None or self._is_copied()
            raise (AbsentLedgerError if is_whole else LedgerError)(
                f"{self.path} was {'removed' if at_path is None else 'replaced'} while it was "
                "being written",
                because="what follows would be on record nowhere",
                fix="restore the file, or start a new study under another name",
            )

    def _is_copied(self) -> bool:
        """Say whether the file that is at the path now says all that this one does."""
        try:
            return _scan(self.path)[0] == self.records
        except LedgerError:
            return False

    def close(self) -> None:
        """Release the file and its lock; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _open_or_make(path: Path, mode: int) -> int:
    """Return an open file, made if it is not there.

    ``O_CREAT`` of a file that is there is refused in a sticky directory where others may write, if
    it is another user's (``fs.protected_regular``), even if its mode lets us write.
    """
    flags = os.O_RDWR | os.O_APPEND
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        return os.open(path, flags | os.O_CREAT, mode)
    except PermissionError as error:
        try:
            return os.open(path, flags)  # somebody else has made it meanwhile
        except FileNotFoundError:
            raise error from None


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


def write_atomically(path: FilePath, content: bytes, *, makes_folder: bool = True) -> None:
    """Replace ``path`` by ``content``: a reader sees the old file or the new one, never a part.

    Args:
        path: Of the file.
        content: All of it.
        makes_folder: Make its folder where that is not there. What belongs into a folder that
            somebody has made before must not: there it would lie in the way of the one that was
            moved.

    Raises:
        StorageError: The old file is still there.
    """
    if isinstance(path, BucketPath):
        path.write_bytes(content)
        return
    try:
        if makes_folder:
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
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StorageError:
    is_gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return StorageError(
        f"cannot write {path}: {error.strerror or error}",
        fix="put its folder back, with all that was in it, before you run again"
        if is_gone
        else MAKE_ROOM,
    )


def damage_of_sqlite(path: Path) -> str:
    """Say what is wrong with a SQLite file as such; empty if nothing is.

    Raises:
        sqlite3.OperationalError: Another program holds it, or it cannot be read.
    """
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            verdict = str(database.execute("pragma integrity_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if verdict == "ok" else verdict.splitlines()[-1]

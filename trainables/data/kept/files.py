"""The files of a feature store: locks, space, and entries that are whole or not there.

A lock is a ``flock``: it ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import ResourceError

#: Use is noted to the day, as the journal of a selection is: when a trial read which features
#: would tell of trials that nobody is to hear of.
_DAY_S = 86_400


def is_open_to_others(directory: Path) -> bool:
    """Say whether anybody but its owner may enter or list a directory."""
    return bool(directory.stat().st_mode & 0o077)


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may enter.

    Raises:
        ResourceError: It cannot be made, or it is there and open to others, who could then read
            the number of records off the sizes of files.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        is_open = is_open_to_others(directory)
    except OSError as error:
        raise ResourceError(
            f"features cannot be kept in {directory}",
            because=error.strerror,
            fix="set storage.features to a directory that can be written to",
        ) from error
    if is_open:
        raise ResourceError(
            f"features cannot be kept in {directory}",
            because="others may list it, and features are as private as records",
            fix=f"chmod 700 {directory}, or set storage.features to a directory that is not there",
        )


@contextlib.contextmanager
def locked(
    path: Path, *, wait: bool = True, keep: bool = False, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold an exclusive lock; the file is removed with it unless it is to ``keep``.

    Args:
        path: The lock's file.
        wait: False to refuse a lock that somebody else holds.
        keep: True to leave the file where it is.
        on_wait: Called if somebody else holds the lock, before waiting.
    Raises:
        BlockingIOError: Somebody else holds it, and ``wait`` is False.
        ResourceError: The file system has no locks.
    """
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            try:
                take(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
            except BlockingIOError:
                if not wait:
                    raise
                if on_wait is not None:
                    on_wait()
                take(handle, fcntl.LOCK_EX, path)
            if _is_still(path, handle):  # its last holder may have removed it
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    try:
        yield
    finally:
        if not keep:
            path.unlink(missing_ok=True)
        os.close(handle)


def take(handle: int, operation: int, path: Path) -> None:
    """Lock an open file.

    Raises:
        BlockingIOError: Somebody else holds it, and ``operation`` does not wait.
        ResourceError: The file system has no locks.
    """
    try:
        fcntl.flock(handle, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise _unusable(path, error) from error


def hold(path: Path) -> int:
    """Return an entry's data file, open for reading and locked against eviction until it is closed.

    Raises:
        OSError: It cannot be opened.
        ResourceError: The file system has no locks.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        take(handle, fcntl.LOCK_SH, path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _unusable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(
        f"{path} cannot be locked",
        because=error.strerror,
        fix="set storage.features to a directory that can be written to and locked",
    )


def _is_still(path: Path, handle: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(handle))
    return False


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def new_array(path: Path, shape: tuple[int, ...], dtype: str) -> int:
    """Make the file of an array with all its space, readable by its owner alone.

    Returns:
        The byte at which the rows begin.
    Raises:
        ResourceError: The disk has no room for it.
    """
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "r+b") as file:
        np.lib.format.write_array_header_1_0(file, header)
        begin = file.tell()
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        file.flush()
        try:
            os.posix_fallocate(handle, 0, begin + size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise ResourceError(
                    f"{path.parent} has no room for more features",
                    because=error.strerror,
                    fix="free some, or set storage.features to a directory on another disk",
                ) from error
            os.ftruncate(handle, begin + size)  # a file system that reserves nothing
    return begin


class Entry:
    """The files of one entry, named after it.

    Args:
        path: Path of any of them, or of none: the directory and the entry's name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name.split(".")[0])
        self.data = self._file("npy")
        self.sidecar = self._file("json")
        self.lock = self._file("lock")

    def _file(self, end: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{end}")

    def new_partial(self) -> Path:
        """Return a path for rows under construction that nobody has used."""
        return self._file(f"{os.urandom(4).hex()}.part")

    def partials(self) -> list[Path]:
        """Return the files of rows under construction."""
        return sorted(self.path.parent.glob(f"{self.path.name}.*.part"))

    def read(self, shape: tuple[int, ...], dtype: str, *, is_use: bool = True) -> np.ndarray | None:
        """Return the features as read-only mapped memory; None if they are not there whole.

        As long as the mapping lives, the data file stays locked against eviction. ``is_use``
        notes the day, for what to evict: not where a trial reads, which would tell of the trial.

        Raises:
            ResourceError: They are another user's.
        """
        try:
            facts = json.loads(self.sidecar.read_text())
            with self.data.open("rb") as file:
                take(file.fileno(), fcntl.LOCK_SH, self.data)
                if os.fstat(file.fileno()).st_size != facts["bytes"]:
                    return None
                np.lib.format.read_magic(file)
                if np.lib.format.read_array_header_1_0(file) != (shape, False, np.dtype(dtype)):
                    return None
                # The mapping duplicates the descriptor, and the lock belongs to both.
                features = np.memmap(file, dtype, "r", file.tell(), shape)
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None
        except PermissionError as error:
            raise ResourceError(
                f"features in {self.path.parent} cannot be read",
                because="they are another user's: whoever computes features keeps them private",
                fix="set storage.features to a directory of your own",
            ) from error
        with contextlib.suppress(OSError):
            if is_use and time.time() - self.used_at() > _DAY_S:
                os.utime(self.sidecar)
        return features.view(np.ndarray)

    def finish(self, partial: Path, facts: dict[str, Any]) -> None:
        """Put complete rows in place, durably, and then the sidecar that makes them count."""
        handle = os.open(partial, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        created = datetime.now(UTC).date().isoformat()
        facts = {**facts, "bytes": size_of(partial), "created": created}
        os.replace(partial, self.data)
        write_atomically(self.sidecar, (json.dumps(facts, indent=1) + "\n").encode())

    def used_at(self) -> float:
        """Return when the entry was last used, to the day, in seconds; 0 without a sidecar."""
        try:
            return self.sidecar.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def remove(self) -> None:
        """Remove the entry; mappings of it stay good. Its lock must be held, or its data's."""
        self.sidecar.unlink(missing_ok=True)
        self.data.unlink(missing_ok=True)
        for partial in self.partials():
            partial.unlink(missing_ok=True)

    def evict(self) -> bool:
        """Remove the entry unless somebody has it mapped or computes it; say whether it is gone."""
        try:
            with locked(self.lock, wait=False), contextlib.ExitStack() as stack:
                with contextlib.suppress(FileNotFoundError):
                    file = stack.enter_context(self.data.open("r+b"))
                    take(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, self.data)
                self.remove()
        except BlockingIOError:
            return False
        return True

    def clear_partials(self) -> None:
        """Remove rows that a killed process left behind; nothing if somebody computes them."""
        with contextlib.suppress(BlockingIOError), locked(self.lock, wait=False):
            for partial in self.partials():
                partial.unlink(missing_ok=True)

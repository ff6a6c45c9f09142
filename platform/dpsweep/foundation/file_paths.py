"""Paths of files wherever they lie: on disk, or in a bucket; what is asked of both alike."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpsweep.foundation.bucket_path import BucketPath, bucket_path, is_address
from dpsweep.foundation.errors import StorageError
from dpsweep.foundation.validate import of_kind

FilePath = Path | BucketPath


def file_path(text: str | Path | BucketPath) -> FilePath:
    """Return a path of files: of a directory, or of a folder in a bucket.

    >>> file_path("studies").name, str(file_path("s3://lab/studies/"))
    ('studies', 's3://lab/studies')

    Raises:
        BadInputError: It is an address, and of no bucket that can be used; or no path.
    """
    if isinstance(text, (Path, BucketPath)):
        return text
    of_kind("a path is a text or a pathlib.Path", text, str, 'give its name, as in "studies"')
    return bucket_path(text) if is_address(text) else Path(text)


def matching(folder: FilePath, pattern: str) -> list[FilePath]:
    """Return what is below a folder and matches, in order; of a folder that is not there, none."""
    return sorted(folder.glob(pattern), key=str)


def size_of(path: FilePath) -> int:
    """Return the bytes of a file or an object.

    Raises:
        FileNotFoundError: There is no such file; of an object that is not there, 0 is returned.
    """
    return path.size() if isinstance(path, BucketPath) else path.stat().st_size


def read_file(path: FilePath) -> bytes:
    """Return what a file or an object holds, of a study that may be somebody else's.

    Raises:
        OSError: It cannot be read, or is no regular file: of a pipe, nothing might ever come.
    """
    if isinstance(path, BucketPath):
        return path.read_bytes()
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        return file.read()


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # of a pipe that nobody writes, too


def is_writable(folder: Path) -> bool:
    """Say whether files can be made in a directory, or below where it could be made.

    A file without a name is made there: what modes allow, a file system may still refuse.
    """
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:  # no directory, no permission, no room, read-only
        return False


def is_read_only(path: Path) -> bool:
    """Say whether the file system that a file lies on is mounted for reading alone."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


@contextmanager
def on_disk(path: FilePath) -> Iterator[Path]:
    """Yield a file or folder for a library that reads none in buckets: itself, or a copy of it."""
    if isinstance(path, Path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        if path.is_file():
            path.download(copy)
        elif path.is_dir():
            copy.mkdir()
            for inner in path.iterdir():
                inner.download(copy / inner.name)
        yield copy


def local_copy(path: FilePath) -> Path:
    """Return a file, or this node's copy of an object that is named by its SHA-256; made once.

    Guarantees:
        The copy has the content that the object's name says, whoever else may write to the bucket.

    Raises:
        StorageError: The bucket cannot be read, or has no such object, or another one.
    """
    if isinstance(path, Path):
        return path
    copy = cache_of(path.parent) / path.name
    if copy.exists() and sha256_of(copy.read_bytes()) == path.stem:
        return copy
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    if sha256_of(content) != path.stem:
        raise StorageError(
            f"{path} is missing, or is not what its name says",
            because="it is named by its SHA-256",
            fix="restore it, or delete it and run the study again, which puts it back",
        )
    partial = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}")
    partial.write_bytes(content)
    partial.replace(copy)
    return copy


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of a content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def cache_of(folder: BucketPath) -> Path:
    """Return this node's directory for copies of what is in a folder of a bucket (``cache``).

    Each folder of each bucket has its own.

    Raises:
        StorageError: As ``cache`` says.
    """
    return cache(sha256_of(str(folder).encode())[:16])


def cache(name: str) -> Path:
    """Return this user's directory on this node for what can be had again; made private.

    ``DPSWEEP_CACHE`` names another place than ``~/.cache/dpsweep``.

    Args:
        name: Of the directory; who keeps things in it knows what they are.
    Raises:
        StorageError: It cannot be made, or is another user's, who could plant copies there.
    """
    place = os.environ.get("DPSWEEP_CACHE")
    if not place:
        place = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        place = os.path.join(place, "dpsweep")
    directory = Path(place).absolute() / name
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        facts = directory.stat()
    except OSError as error:
        raise StorageError(
            f"copies cannot be kept in {directory}",
            because=error.strerror,
            fix="set DPSWEEP_CACHE to a directory of yours",
        ) from error
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise StorageError(
            f"copies cannot be kept in {directory}",
            because="others may write or list it",
            fix="set DPSWEEP_CACHE to a directory of your own, or chmod 700 it",
        )
    return directory


def set_aside(path: FilePath) -> FilePath:
    """Rename a damaged file or folder out of the way, keeping it, and return its new name."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(target)  # type: ignore[arg-type]  # of the same kind
    return target

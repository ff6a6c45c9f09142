"""Paths in a bucket of an object store: used as a file's path is, for files that need no lock."""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.errors import BadInputError, StorageError, UnreachableError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3", "gs")
#: One slash is a mistake for two; a folder of that name can be written ./s3:/...
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}")
_FORM = "s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS, or give "
    "the machine a role"
)
_CONNECT_S, _TRIES, _GIVE_UP = 5.0, 6, timedelta(seconds=30)
_KIND_OF_ERROR = re.compile(r"AWS Error ([A-Z_]+)")
#: What stores say that may do well later; an answer to HEAD has a number alone.
_SILENT = re.compile(
    r"NETWORK_CONNECTION|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE|SLOW_DOWN|HTTP status (5\d\d|429)"
    r"|UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]ould not (connect|resolve)"
)
_SILENCE = ("the object store does not answer, or not now", "set AWS_ENDPOINT_URL if it is another")
_REASONS = {
    "NO_SUCH_BUCKET": ("there is no such bucket", "make it first"),
    "ACCESS_DENIED": ("access is denied", _CREDENTIALS),
    "INVALID_ACCESS_KEY_ID": ("the access key is not known there", _CREDENTIALS),
    "SIGNATURE_DOES_NOT_MATCH": ("the secret key is wrong", _CREDENTIALS),
}
_SHOWN = 200
_HOLDS_S = 60.0
#: By scheme and bucket: when it was asked, and whether it answered.
_answered: dict[tuple[str, str], tuple[float, bool]] = {}


def is_address(text: str) -> bool:
    """Say whether a text is an address, of whatever kind, and no path of a file."""
    return _ADDRESS.match(text) is not None


@dataclass(frozen=True, order=True)
class BucketPath:
    """The name of an object, or of a folder of objects, in a bucket.

    Guarantees:
        When ``write_bytes`` returns, the object store has the object; a reader sees the old object
        or the new one, never a part. Nothing here is a lock: two that write one name overwrite
        each other.

    Every method but the names asks the store, with the credentials and the endpoint of this
    process's environment (``AWS_ENDPOINT_URL`` for stores that are not Amazon's). Folders are not
    made there: a name with slashes is all that an object needs.

    Attributes:
        scheme: ``s3`` or ``gs``.
        key: Bucket and name, with slashes as a path has them.

    >>> path = BucketPath("s3", "lab/studies") / "digits" / "spec.yaml"
    >>> path.name, str(path.parent), str(path)
    ('spec.yaml', 's3://lab/studies/digits', 's3://lab/studies/digits/spec.yaml')

    Raises:
        FileNotFoundError: From ``read_bytes`` and ``unlink``: there is no such object.
        UnreachableError: The store does not answer, after some tries.
        StorageError: It refuses.
    """

    scheme: str
    key: str

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(self.scheme, f"{self.key}/{name}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    @property
    def _pure(self) -> PurePosixPath:
        return PurePosixPath(self.key)

    @property
    def name(self) -> str:
        """Last part of the name."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """Last part without its ending."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """Ending of the last part, with its dot."""
        return self._pure.suffix

    @property
    def parent(self) -> BucketPath:
        """The folder; of a bucket, itself."""
        return self if "/" not in self.key else BucketPath(self.scheme, str(self._pure.parent))

    def with_name(self, name: str) -> BucketPath:
        """Return the path of another object beside this one."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> BucketPath:
        """Return the path with another ending."""
        return BucketPath(self.scheme, str(self._pure.with_suffix(suffix)))

    def as_uri(self) -> str:
        """Return the address."""
        return str(self)

    def resolve(self) -> BucketPath:
        """Return the path itself: an address holds in every directory."""
        return self

    def exists(self) -> bool:
        """Ask whether there is such an object, or are objects below such a folder."""
        return self._kind() != "NotFound"

    def is_file(self) -> bool:
        """Ask whether there is such an object."""
        return self._kind() == "File"

    def is_dir(self) -> bool:
        """Ask whether there are objects below such a folder."""
        return self._kind() == "Directory"

    def _kind(self) -> str:
        with self._asked("read") as store:
            return str(store.get_file_info(self.key).type.name)

    def size(self) -> int:
        """Ask for the number of bytes of an object; 0 of one that is not there."""
        with self._asked("read") as store:
            return int(store.get_file_info(self.key).size or 0)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: objects need no folder."""

    def read_bytes(self) -> bytes:
        """Return the whole object."""
        with self._asked("read") as store, store.open_input_stream(self.key) as stream:
            return bytes(stream.read())

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the whole object as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes) -> None:
        """Put an object in place; one of that name is replaced."""
        content = bytes(content)

        def put(store: FileSystem) -> None:
            with store.open_output_stream(self.key) as stream:
                stream.write(content)

        # Ctrl-C and SIGTERM come to the main thread: it would close, and so keep, half an object.
        with self._asked("write") as store, ThreadPoolExecutor(1) as thread:
            thread.submit(put, store).result()

    def upload(self, file: Path) -> None:
        """Put a file's content in place, however large it is."""
        self._copy(file, "write")

    def download(self, file: Path) -> None:
        """Write the object to a file, however large it is; the caller puts it in place."""
        self._copy(file, "read")

    def _copy(self, file: Path, doing: str) -> None:
        from pyarrow.fs import LocalFileSystem, copy_files

        local = LocalFileSystem()
        with self._asked(doing) as store:
            if doing == "write":
                copy_files(str(file), self.key, local, store, use_threads=False)
            else:
                copy_files(self.key, str(file), store, local, use_threads=False)

    def glob(self, pattern: str) -> Iterator[BucketPath]:
        """Yield what is right below this folder and has a name that matches, ``*/NAME`` included.

        Of ``*/NAME``, each folder is asked for that object.
        """
        head, _, rest = pattern.partition("/")
        for path in self.iterdir():
            if not fnmatchcase(path.name, head):
                continue
            if not rest:
                yield path
            elif (path / rest).is_file():
                yield path / rest

    def iterdir(self) -> Iterator[BucketPath]:
        """Yield what is right below this folder, in the order of names."""
        from pyarrow.fs import FileSelector

        with self._asked("list") as store:
            infos = store.get_file_info(FileSelector(self.key, allow_not_found=True))
        for name in sorted(info.base_name for info in infos):
            yield self / name

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the object."""
        try:
            with self._asked("write") as store:
                store.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_all(self) -> None:
        """Remove every object below this folder; there may be none."""
        from pyarrow.fs import FileType

        with self._asked("write") as store:
            if store.get_file_info(self.key).type == FileType.Directory:
                store.delete_dir(self.key)

    def rename(self, target: BucketPath) -> None:
        """Give the object another name: it is copied first, and then removed."""
        with self._asked("write") as store:
            store.move(self.key, target.key)

    @contextmanager
    def _asked(self, doing: str) -> Iterator[FileSystem]:
        """Yield the store; what it raises is told with this path, but for a missing object."""
        try:
            yield store_of(self)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refusal(f"cannot {doing} {self}", str(error)) from error


def _refusal(problem: str, text: str) -> StorageError:
    """Return the error for what an object store has said."""
    text = blotted(text)
    match = _KIND_OF_ERROR.search(text)
    kind = match.group(1) if match else ""
    if _SILENT.search(text):
        return UnreachableError(problem, because=_SILENCE[0], fix=_SILENCE[1])
    first = text.strip().splitlines()[0][:_SHOWN]
    because, fix = _REASONS.get(kind, (first, "see to the name, the region and the credentials"))
    return StorageError(problem, because=because, fix=fix)


def store_of(path: BucketPath) -> FileSystem:
    """Return the object store of a path, with this process's credentials; made once a bucket.

    It is what Ray Tune takes for its own files, too.

    Raises:
        OSError: Nobody knows the bucket, where its region has to be asked for.
    """
    return _store(path.scheme, path.key.partition("/")[0], _TRIES)


@cache
def _store(scheme: str, bucket: str, tries: int) -> FileSystem:
    from pyarrow import fs

    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=_GIVE_UP if tries > 1 else _GIVE_UP / 10)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and endpoint is None:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        allow_delayed_open=True,
        connect_timeout=_CONNECT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=tries),
    )


def bucket_path(text: str) -> BucketPath:
    """Return the path that an address names.

    >>> str(bucket_path("s3://lab/studies/"))
    's3://lab/studies'

    Raises:
        BadInputError: It is of no bucket that can be used.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        raise BadInputError("not an address of a bucket", fix=_FORM) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInputError(
            "a bucket's address holds no credentials and no settings", fix=_CREDENTIALS
        )
    scheme = "gs" if parts.scheme == "gcs" else parts.scheme
    names = [name for name in parts.path.split("/") if name]
    if scheme not in SCHEMES or not _BUCKET.fullmatch(parts.netloc) or {".", ".."} & set(names):
        raise BadInputError(f"not an address of a bucket: {text!r}", fix=_FORM)
    return BucketPath(scheme, "/".join([parts.netloc, *names]))


def answers(path: BucketPath) -> bool:
    """Say whether an object store lets itself be read now, after one try.

    What it said holds for a minute, so that a plan made without a network is made at once.
    """
    bucket = path.key.partition("/")[0]
    at, did = _answered.get((path.scheme, bucket), (-math.inf, False))
    if time.monotonic() - at > _HOLDS_S:
        try:
            _store(path.scheme, bucket, 1).get_file_info(path.key)
            did = True
        except OSError:
            did = False
        _answered[path.scheme, bucket] = time.monotonic(), did
    return did


def probe(folder: BucketPath) -> None:
    """Write an object to a folder, and remove it.

    Raises:
        StorageError: That cannot be done, or nothing answers.
    """
    path = folder / f".probe-{uuid.uuid4().hex}"
    path.write_bytes(b"")
    path.unlink()
    _answered[folder.scheme, folder.key.partition("/")[0]] = time.monotonic(), True

"""Paths in a PostgreSQL database: the name of a log there, used as a file's path is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qsl, urlsplit

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.postgres import sessions

SCHEMES = ("postgresql", "postgres")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Settings of libpq that an address may have: none holds a secret, none weakens durability.
_SETTINGS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding", "gssencmode")
#: Environment variable with the password of a database, as libpq has it.
PASSWORD = "PGPASSWORD"
#: Where ledgers of datasets lie: a name that no study can have.
_OF_DATASETS = ".datasets/"
_FORM = "postgresql://USER@HOST:PORT/DATABASE"
_PASSWORD = f"set {PASSWORD}, or write it to ~/.pgpass (PGPASSFILE names another file)"


def is_database_address(text: str) -> bool:
    """Say whether a text is an address of PostgreSQL's and no path of a file."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def check_server(text: str) -> str:
    """Return the address of a database, ``postgresql://USER@HOST:PORT/DATABASE``, as libpq has it.

    >>> check_server("postgres://ada@db.example/sweeps")
    'postgresql://ada@db.example/sweeps'

    Raises:
        BadInputError: It is none, or it holds a password: specs are frozen, logged and shown.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:  # its text would quote what stands behind a colon, a password perhaps
        raise BadInputError(
            "not an address of a database: its port is no number", fix=_FORM
        ) from None
    if parts.password is not None or "@" in parts.path + parts.query + parts.fragment:
        raise BadInputError("a password has no place in an address", fix=_PASSWORD)
    if parts.scheme not in SCHEMES or not parts.path.strip("/") or parts.fragment:
        shown = parts._replace(query="", fragment="").geturl()
        raise BadInputError(f"not an address of a database: {shown!r}", fix=_FORM)
    if not parts.hostname:
        raise BadInputError(
            "the address of a database needs its host: without, each node would ask another",
            fix=_FORM,
        )
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _SETTINGS:
            raise BadInputError(
                f"setting {name!r} has no place in the address of a database",
                fix=_PASSWORD
                if name == "password"
                else f"those allowed are {', '.join(_SETTINGS)}",
            )
    return parts._replace(scheme="postgresql").geturl()


@dataclass(frozen=True)
class DatabasePath:
    """The name of a log, or of a folder of logs, in a database.

    Only names and an address: it connects to nothing, except where a method says so.

    Attributes:
        server: Address of the database, without a password.
        key: Name, with slashes as a path has them.

    >>> path = DatabasePath("postgresql://ada@db/sweeps", "digits") / "ledger" / "study.jsonl"
    >>> path.key, path.name, str(path.parent)
    ('digits/ledger/study.jsonl', 'study.jsonl', 'postgresql://ada@db/sweeps#digits/ledger')
    """

    server: str
    key: str

    def __truediv__(self, name: str) -> DatabasePath:
        return DatabasePath(self.server, f"{self.key}/{name}")

    def __str__(self) -> str:
        """Return its address, as ``log_path`` takes that of a dataset's ledger."""
        return f"{self.server}#{self.key.removeprefix(_OF_DATASETS)}"

    @property
    def name(self) -> str:
        """Last part of the name."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """Last part without its ending."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> DatabasePath:
        """The folder."""
        return DatabasePath(self.server, str(PurePosixPath(self.key).parent))

    def with_name(self, name: str) -> DatabasePath:
        """Return the path of another log beside this one."""
        return self.parent / name

    def exists(self) -> bool:
        """Ask the database whether the log is there."""
        return sessions.has_log(self)

    def glob(self, pattern: str) -> Iterator[DatabasePath]:
        """Ask the database for the logs right below this folder whose names match."""
        for key in sessions.logs_below(self):
            name = key.removeprefix(f"{self.key}/")
            if "/" not in name and fnmatchcase(name, pattern):
                yield DatabasePath(self.server, key)

    def rename(self, target: DatabasePath) -> None:
        """Give the log another name in its database."""
        sessions.rename_log(self, target)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the log with its records."""
        if not sessions.remove_log(self) and not missing_ok:
            raise FileNotFoundError(str(self))


LogPath = Path | DatabasePath


def log_path(text: str | Path) -> LogPath:
    """Return the path of a log of its own: a file's, or ``postgresql://USER@HOST/DATABASE#NAME``.

    >>> path = log_path("postgresql://ada@db/sweeps#census")
    >>> path.key, str(path)
    ('.datasets/census', 'postgresql://ada@db/sweeps#census')

    Raises:
        BadInputError: It is an address of a database, and lacks its name or holds a password.
    """
    if isinstance(text, Path) or not is_database_address(text):
        return Path(text)
    server, _, name = text.partition("#")
    if not _NAME.fullmatch(name):
        raise BadInputError(
            f"{check_server(server)} needs a name behind it: letters, digits, dots, hyphens",
            fix=f"{check_server(server)}#NAME",
        )
    return DatabasePath(check_server(server), _OF_DATASETS + name)

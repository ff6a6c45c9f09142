"""Servers that may be away or refuse: whether anybody listens, and what to do, in a few words."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dpsweep.foundation.blotting import blotted
from dpsweep.foundation.errors import StorageError, UnreachableError

_PREFIX = re.compile(r"^(?:connection (?:to server at .*? )?failed: )+(?:FATAL:\s+)?")
# What waiting does not mend where a connection is made, in libpq's and the server's words.
_HOPELESS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "permission denied",
    "server does not support ssl",
    "certificate verify failed",
    "could not translate host name",
    "invalid",
)


def why_silent(address: str, timeout_s: float) -> str:
    """Return why nobody can be reached at an http address, or nothing.

    It takes an instant where the libraries that would ask are slow to load, or ask for a minute.
    Behind a proxy nothing is tried: a request will hear what it says.

    >>> why_silent("http://127.0.0.1:port", 1.0)
    "Port could not be cast to integer value as 'port'"
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if getproxies().get(parts.scheme) and not proxy_bypass(host):
            return ""
        socket.create_connection((host, port), timeout_s).close()
    except (OSError, ValueError) as error:
        return cause_of(error)
    return ""


def cause_of(error: BaseException) -> str:
    """Return the innermost reason of a request that failed, in a few words without secrets.

    >>> cause_of(OSError("no answer (Caused by ResponseError('too many 503 errors'))"))
    'too many 503 errors'
    """
    text = blotted(str(error))
    for word, reason in (
        ("Connection refused", "connection refused"),
        ("timed out", "timed out"),
        ("Name or service not known", "its name is not known"),
        ("Temporary failure in name resolution", "its name is not known"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate cannot be verified"),
    ):
        if word in text:
            return reason
    if caused := re.search(r"Caused by \w+\(['\"](.+?)['\"]\)", text):
        return caused.group(1)[:200]
    return text.strip().splitlines()[0][:200] if text.strip() else type(error).__name__


def brief(error: BaseException) -> str:
    """Return the first line of an error of the database's, which never holds the password."""
    lines = [line.strip() for line in blotted(str(error)).splitlines() if line.strip()]
    return _PREFIX.sub("", lines[0])[:200] if lines else type(error).__name__


def is_hopeless(error: BaseException) -> bool:
    """Say whether waiting cannot mend what the server or libpq says."""
    text = str(error).lower()
    return any(word in text for word in _HOPELESS) and "starting up" not in text


_BECAUSE = "nothing may run whose privacy charge cannot be written"
# SQLSTATE of a right that lacks, and of connections that are all taken. Where a connection is made
# libpq passes on the words alone; the last are PgBouncer's.
_LACKS_RIGHT, _IS_FULL = "42501", "53300"
_FULL = (
    "too many connections",
    "too many clients",
    "remaining connection slots",
    "no more connections allowed",
)
#: How a database that is full takes one more.
MORE_CONNECTIONS = (
    "raise the connection limit of its role, or max_connections, or set a smaller "
    "search.max_concurrent (docs/cluster.md says how many a study needs)"
)
#: How a role gets the rights that a study needs.
_GRANTS = (
    "its owner must grant you: usage on schema dpsweep; select, insert, update, delete on its "
    "tables; usage on its sequences (docs/cluster.md has the lines)"
)


def innermost(error: BaseException) -> BaseException:
    """Return what the database said, of an error that stands for it."""
    while (inner := getattr(error, "orig", None) or error.__cause__) is not None:
        error = inner
    return error


def is_full(error: BaseException) -> bool:
    """Say whether the server, or its limit for a role, has no connection left."""
    text = str(error).lower()
    return getattr(error, "sqlstate", None) == _IS_FULL or any(word in text for word in _FULL)


def missing_right(error: BaseException) -> str:
    """Return who must grant what, where a right lacks; empty if none does."""
    is_connected = getattr(error, "sqlstate", None) == _LACKS_RIGHT
    if not is_connected and "permission denied" not in str(error):
        return ""
    if "for database" in brief(error):
        right = "create" if is_connected else "connect"
        more = ", or make the schema with a first study" if is_connected else ""
        return f"its owner must grant you {right} on the database{more}"
    return _GRANTS


def refusal(server: str, error: BaseException) -> StorageError:
    """Return what says that a database refuses."""
    return StorageError(
        f"the database {server} refuses: {brief(error)}",
        because=_BECAUSE,
        fix=missing_right(error) or "check the address, the user, and PGPASSWORD or ~/.pgpass",
    )


def rights_refusal(server: str, role: str, lacking: list[str]) -> StorageError:
    """Return what says which rights a role lacks in a database that answers it."""
    more = f", and {len(lacking) - 4} more" if len(lacking) > 4 else ""
    return StorageError(
        f"the database {server} does not let {role} write: it lacks {', '.join(lacking[:4])}{more}",
        because=_BECAUSE,
        fix="its owner must grant you that (docs/cluster.md has the lines for all of it)",
    )


def silence(server: str, error: BaseException) -> UnreachableError:
    """Return what says that a database has not answered in time, or had no connection free."""
    if is_full(error):
        problem, fix = f"the database {server} has no free connection", MORE_CONNECTIONS
    else:
        problem, fix = f"the database {server} does not answer", "start it"
    return UnreachableError(
        f"{problem}: {brief(error)}",
        because=_BECAUSE,
        fix=f"{fix}; then run the same command again; what was charged before is safe",
    )

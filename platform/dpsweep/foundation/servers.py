"""Servers that may be away or refuse: whether anybody listens, and what to do, in a few words."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

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
    """Return the innermost reason of a request that failed, in a few words.

    >>> cause_of(OSError("no answer (Caused by ResponseError('too many 503 errors'))"))
    'too many 503 errors'
    """
    text = str(error)
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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _PREFIX.sub("", lines[0])[:200] if lines else type(error).__name__


def is_hopeless(error: BaseException) -> bool:
    """Say whether waiting cannot mend what the server or libpq says."""
    text = str(error).lower()
    return any(word in text for word in _HOPELESS) and "starting up" not in text


_BECAUSE = "nothing may run whose privacy charge cannot be written"


def refusal(server: str, error: BaseException) -> StorageError:
    """Return what says that a database refuses."""
    return StorageError(
        f"the database {server} refuses: {brief(error)}",
        because=_BECAUSE,
        fix="check the address, the user, and PGPASSWORD or ~/.pgpass",
    )


def silence(server: str, error: BaseException) -> UnreachableError:
    """Return what says that a database has not answered in time."""
    return UnreachableError(
        f"the database {server} does not answer: {brief(error)}",
        because=_BECAUSE,
        fix="start it, and run the same command again; what was charged before is safe",
    )

"""The tracking section of a spec: where runs are recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpsweep.foundation.errors import Mistake
from dpsweep.spec.base import Part, Text, peek_word
from dpsweep.spec.installed import known_name, name_schema

#: The tracker that dpsweep has itself; an installed package may add others (``TRACKER_GROUP``).
TRACKERS = ("mlflow",)
TRACKER_GROUP = "dpsweep.trackers"
TrackerName = Annotated[
    str,
    BeforeValidator(known_name(TRACKERS, TRACKER_GROUP)),
    WithJsonSchema(name_schema(TRACKERS)),
]


class TrackingSpec(Part):
    """Where runs are recorded."""

    kind: TrackerName = Field(
        default="mlflow", description="mlflow, or the tracker of an installed package."
    )
    uri: Text | None = Field(
        default="sqlite:///mlflow.db",
        description="MLflow store: sqlite:///FILE, the http(s) address of a server, or a database "
        "of a SQL server, postgresql+DRIVER://USER@HOST/DATABASE (so mysql and mssql). Files and "
        "models of a database go to the folder mlruns of where the command runs that makes the "
        "experiment, unless that has another artifact location. Of another kind, what that takes; "
        "null: none.",
    )
    experiment: Text | None = Field(
        default=None, description="Experiment that runs belong to; null: the study's name."
    )
    pictures: bool = Field(
        default=True,
        description="Draw pictures and a page of the study when it has finished, and log them.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Refuse directories: MLflow's file store loses what is written concurrently."""
        uri, kind = raw.get("uri"), peek_word(raw, "kind", default="mlflow")
        if kind != "mlflow":  # its own to check (``dpsweep.tracking.refuse_uri``)
            if "uri" not in raw:
                problem = f"is missing: the default is for mlflow, and the kind is {kind}"
                yield Mistake("uri", problem, "say where its records go, or null")
            return
        if not isinstance(uri, str) or not uri.strip() or uri == "databricks":
            return
        if "://" not in uri or uri.startswith("file:"):
            yield Mistake(
                "uri",
                f"{masked(uri)!r} is {_kind_of_uri(uri)}",
                _STORES,
            )
            return
        scheme = uri.partition("://")[0].partition("+")[0]
        plugins = {entry.name for entry in metadata.entry_points(group="mlflow.tracking_store")}
        if scheme not in {*_SCHEMES, *plugins}:
            yield Mistake("uri", f"{masked(uri)!r}: MLflow knows no store {scheme}://", _STORES)
        if uri.partition("?")[0] in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
            yield Mistake("uri", f"{masked(uri)!r} names no file", _STORES)


def database_of(uri: str | None) -> Path | None:
    """Return the file of a SQLite store, or None for another store or none."""
    if uri is None or not uri.startswith(_SQLITE):
        return None
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]).resolve()


def is_sql_server(uri: str) -> bool:
    """Say whether a tracking URI names the database of a SQL server.

    >>> is_sql_server("postgresql+psycopg://me@db/mlflow"), is_sql_server("sqlite:///mlflow.db")
    (True, False)
    """
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme.partition("+")[0] in _SERVERS


def masked(text: str) -> str:
    """Return a text in which passwords and tokens of addresses are blotted out.

    >>> masked("no answer from http://me:secret@host:5000/x?token=abc&a=1")
    'no answer from http://me:***@host:5000/x?token=***&a=1'
    >>> masked("http://me:a@b@host"), masked("from http://me:a@b@host to http://you:c@d@other")
    ('http://me:***@host', 'from http://me:***@host to http://you:***@other')
    >>> masked("http://token@host")
    'http://***@host'
    >>> masked("postgresql://me@db/studies")
    'postgresql://me@db/studies'
    >>> masked("postgresql+psycopg://me:se/cr?t@db/studies")
    'postgresql+psycopg://me:***@db/studies'
    >>> masked("connection to host=db user=me password=secret failed")
    'connection to host=db user=me password=*** failed'
    """
    text = re.sub(rf"(sql(?:\+\w+)?://{_DB_USER}):[^\s@]+@(?:(?:(?!://)\S)*@)?", r"\1:***@", text)
    text = re.sub(rf"(://{_USER}):{_NO_PORT}(?:(?!://)[^\s@])+@{_MORE}", r"\1:***@", text)
    # A name alone may be a token; the user of a database is none.
    text = re.sub(rf"(?<![\w+])({_NO_SQL}[\w+.-]*://)[^/\s@:]+:?@{_MORE}", r"\1***@", text)
    text = re.sub(r"(?i)([?&][^=&\s]*(?:password|token|secret|key)=)[^&\s'\"]*", r"\1***", text)
    # Addresses of PostgreSQL have another form, too: words, and values in quotes or without.
    return re.sub(r"(?i)\b(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", r"\1***", text)


# A password may have an "@" itself: libraries split an address at the last one before its host. A
# name of a user may have one, too; digits up to a slash are a port then, and no password.
_NO_PORT = r"(?!\d*/)"
_USER = r"(?!\[)(?:(?!@\[)[^/\s:])*"
_DB_USER = rf"(?:[^/\s@:]*(?=:)|{_USER}(?=:{_NO_PORT}))"
_MORE = r"(?:[^/\s@]*@)*"
_NO_SQL = r"(?!\w*sql(?:\+\w+)?:)"
_SQLITE = "sqlite:///"
_SERVERS = ("postgresql", "mysql", "mssql")
_SCHEMES = ("sqlite", *_SERVERS, "http", "https", "databricks", "uc")
_STORES = "use sqlite:///mlflow.db, the http address of a server, or null"


def _kind_of_uri(uri: str) -> str:
    """Say what is wrong about a tracking store's address that MLflow would take for a path."""
    scheme, colon, _ = uri.partition(":")
    if colon and scheme != "file" and "/" not in scheme and len(scheme) > 1:
        return f"no address of a store: it begins with {scheme}:"
    return "a directory, and MLflow no longer keeps its records in one"

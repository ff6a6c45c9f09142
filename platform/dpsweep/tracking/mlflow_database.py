"""MLflow's database before MLflow opens it: a new SQLite file is a copy of an empty one.

A new store holds specs and models, so it is closed to other users, the folder of its files too. In
a folder that a group may write to, and nobody else, it is the group's as the umask says. One that
is there keeps its modes. A SQL server is asked for a connection: MLflow tries for an hour to reach
one that does not answer, or that refuses who asks.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import tempfile
import threading
import uuid
from importlib.metadata import version
from pathlib import Path

from dpsweep.foundation.kept import kept
from dpsweep.foundation.servers import brief, cause_of
from dpsweep.spec.tracking import database_of, is_sql_server, masked
from dpsweep.tracking.base import StoreRefusedError

#: A server that has not answered by then is away.
PATIENCE_S = 8.0
_CONNECT_S = 5
# What each driver calls the time that a connection may take; others are left after PATIENCE_S.
_TIMEOUTS = {
    "mysqlconnector": "connection_timeout",
    "mysqldb": "connect_timeout",
    "pg8000": "timeout",
    "psycopg": "connect_timeout",
    "psycopg2": "connect_timeout",
    "pymssql": "login_timeout",
    "pymysql": "connect_timeout",
    "pyodbc": "timeout",
}


def begin_database(uri: str) -> None:
    """Put an empty store where a SQLite store is to be; one that is there is left alone.

    MLflow makes a new one by all the migrations that it ever had, which takes over a second. The
    empty store of this version of MLflow is kept in the user's cache. Where it cannot be put,
    nothing is: MLflow makes its own.

    Args:
        uri: Tracking URI; of another than a SQLite file nothing is done.
    """
    path = database_of(uri)
    if path is None or path.exists() or not path.parent.is_dir():
        return
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        try:
            content = kept("mlflow", f"{version('mlflow')}.db", _empty)
            mode = 0o660 if _is_of_a_group(path.parent) else 0o600
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.link(partial, path)  # whole or not at all, and never in place of another
        finally:
            partial.unlink(missing_ok=True)


def files_beside(database: Path) -> Path:
    """Return the folder of a SQLite store's files, and make it, closed, if it is not there.

    Where it cannot be made, MLflow says why, once it wants it.
    """
    folder = database.parent / "mlartifacts"
    with contextlib.suppress(OSError):
        folder.mkdir(0o770 if _is_of_a_group(database.parent) else 0o700)
    return folder


def _is_of_a_group(folder: Path) -> bool:
    return folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) == stat.S_IWGRP


def prepare_database(uri: str) -> None:
    """Do ``begin_database``, and refuse a database that cannot be written, or cannot be reached.

    Raises:
        StoreRefusedError: A SQLite file, or its folder, may not be written.
        ConnectionError: A SQL server takes no connection.
    """
    begin_database(uri)
    refuse_unwritable(uri)
    refuse_closed(uri)


def refuse_unwritable(uri: str) -> None:
    """Refuse a SQLite store that cannot be written, which MLflow would try for minutes.

    Args:
        uri: Tracking URI; another than a SQLite file is not looked at.
    Raises:
        StoreRefusedError: The file, or its folder, is not there, or may not be written.
    """
    path = database_of(uri)
    if path is None:
        return
    try:
        with contextlib.closing(sqlite3.connect(path, 1.0, isolation_level=None)) as database:
            database.execute("begin immediate")
            (number,) = database.execute("pragma user_version").fetchone()
            database.execute(f"pragma user_version = {number}")  # the same; it begins a journal
            database.execute("rollback")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):  # another program writes there; MLflow waits for it
            return
        raise StoreRefusedError(
            f"the tracking store {path} cannot be written ({error})",
            fix="let this user write to the file and its folder, and run the same command again",
        ) from error


def experiments_in(uri: str, name: str) -> list[tuple[int, str]]:
    """Return the id and the stage, ``active`` or ``deleted``, of a SQLite store's experiment.

    MLflow is not loaded, and nothing is made. None for another store, one that is not there, and
    one that cannot be read now.

    Args:
        uri: Tracking URI.
        name: Of the experiment.
    """
    path = database_of(uri)
    if path is None or not path.is_file():
        return []
    asked = "select experiment_id, lifecycle_stage from experiments where name = ?"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", 1.0, uri=True)) as db:
            return list(db.execute(asked, (name,)))
    except sqlite3.Error:
        return []


def why_closed(uri: str) -> str:
    """Return why a SQL server takes no connection of ours, or nothing.

    It is asked for one connection, which is closed at once. The words have no password.

    Args:
        uri: Tracking URI; of another store nothing is asked.
    """
    if not is_sql_server(uri):
        return ""
    answers: list[str] = []
    # A name that cannot be resolved may hold a connection up for longer than its timeout.
    thread = threading.Thread(
        target=lambda: answers.append(_asked(uri)), name="dpsweep-reach", daemon=True
    )
    thread.start()
    thread.join(PATIENCE_S)
    return masked(answers[0]) if answers else f"no answer within {PATIENCE_S:g} s"


def refuse_closed(uri: str) -> None:
    """Refuse a store on a SQL server that takes no connection, which MLflow would try for an hour.

    Args:
        uri: Tracking URI; of another store nothing is asked.
    Raises:
        ConnectionError: It is away, or it refuses who asks; it may be back later.
    """
    if reason := why_closed(uri):
        raise ConnectionError(reason)


def _asked(uri: str) -> str:
    from sqlalchemy import create_engine
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):  # whose words may have a password
        return "that is no address of a database"
    try:
        name = _TIMEOUTS.get(url.get_driver_name())
        limits = {name: _CONNECT_S} if name is not None and name not in url.query else {}
        create_engine(url, poolclass=NullPool, connect_args=limits).connect().close()
    except (ImportError, NoSuchModuleError) as error:
        return f"the driver that it names is not installed ({error})"
    except Exception as error:  # whatever drivers and SQLAlchemy raise
        return cause_of(OSError(brief(getattr(error, "orig", None) or error)))
    return ""


def _empty() -> bytes:
    """Return a SQLite file with MLflow's tables and no rows, as ``mlflow db upgrade`` makes it."""
    from mlflow import db

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        db.upgrade.callback(f"sqlite:///{path}")
        return path.read_bytes()

"""MLflow's SQLite store before MLflow opens it: a new one is a copy of an empty one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import uuid
from importlib.metadata import version
from pathlib import Path

from dpsweep.foundation.kept import kept
from dpsweep.spec.tracking import database_of
from dpsweep.tracking.base import StoreRefusedError


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
            partial.write_bytes(kept("mlflow", f"{version('mlflow')}.db", _empty))
            os.link(partial, path)  # whole or not at all, and never in place of another
        finally:
            partial.unlink(missing_ok=True)


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


def _empty() -> bytes:
    """Return a SQLite file with MLflow's tables and no rows, as ``mlflow db upgrade`` makes it."""
    from mlflow import db

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        db.upgrade.callback(f"sqlite:///{path}")
        return path.read_bytes()

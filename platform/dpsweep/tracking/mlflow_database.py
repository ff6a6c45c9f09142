"""MLflow's SQLite store before MLflow opens it: a new one is a copy of an empty one.

A new store holds specs and models, so it is closed to other users, the folder of its files too. In
a folder that a group may write to, and nobody else, it is the group's as the umask says. One that
is there keeps its modes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
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


def _empty() -> bytes:
    """Return a SQLite file with MLflow's tables and no rows, as ``mlflow db upgrade`` makes it."""
    from mlflow import db

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        db.upgrade.callback(f"sqlite:///{path}")
        return path.read_bytes()

"""The file of Optuna's study, which the journal can always replace."""

import contextlib
import errno
import os
import sqlite3
from pathlib import Path

import optuna
import pytest

from dpsweep.search import optuna_file
from dpsweep.search.optuna_file import OptunaFile


def test_no_trial_waits_for_the_disk_and_the_file_is_one_that_optuna_opens(tmp_path):
    place = OptunaFile(tmp_path / "studies" / "optuna.db")
    storage = place.storage()
    for _ in range(2):  # connections
        with storage.engine.connect() as connection:
            assert connection.exec_driver_sql("pragma synchronous").scalar() == 0
        storage.engine.dispose()
    study = optuna.create_study(study_name="s", storage=storage)
    study.tell(study.ask(), 0.5)
    storage.engine.dispose()
    assert place.problem() == ""
    url = f"sqlite:///{place.path}"
    assert optuna.load_study(study_name="s", storage=url).trials[0].value == 0.5
    connection = sqlite3.connect(place.path)  # another program's own wish
    assert connection.execute("pragma synchronous").fetchone() == (2,)
    connection.close()


def test_what_was_told_reaches_the_disk_in_the_end(tmp_path, monkeypatch):
    place, synced = OptunaFile(tmp_path / "optuna.db"), []
    place.keep()  # nothing is there yet
    storage = place.storage()
    monkeypatch.setattr(optuna_file.os, "fsync", lambda file: synced.append(file.name))
    place.keep()
    storage.engine.dispose()
    assert synced == [str(place.path)]


def contents(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        tables = database.execute("select name, sql from sqlite_master order by name").fetchall()
        names = [name for name, _ in tables if not name.startswith(("ix_", "sqlite_"))]
        return tables, {
            name: database.execute(f"select * from {name}").fetchall() for name in names
        }


def test_a_new_file_is_what_optuna_would_have_made(tmp_path, monkeypatch):
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'own.db'}").engine.dispose()
    place = OptunaFile(tmp_path / "optuna.db")
    place.storage().engine.dispose()  # which may fill the cache
    place.path.unlink()
    monkeypatch.setattr(optuna.storages._rdb.storage._VersionManager, "get_head_version", None)
    place.storage().engine.dispose()
    monkeypatch.undo()
    assert contents(place.path) == contents(tmp_path / "own.db")
    assert {path.name for path in tmp_path.iterdir()} == {"own.db", "optuna.db"}
    with contextlib.closing(sqlite3.connect(place.path)) as database, database:
        database.execute("update alembic_version set version_num = 'v9.9'")
    with pytest.raises(RuntimeError, match="no longer compatible"):  # one that is there is checked
        place.storage()


@pytest.mark.parametrize("refused", ["link", "write"])
def test_where_no_copy_can_be_put_optuna_makes_its_own(tmp_path, monkeypatch, refused):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "not here")

    place = OptunaFile(tmp_path / "optuna.db")
    monkeypatch.setattr(*((os, "link") if refused == "link" else (Path, "write_bytes")), refuse)
    storage = place.storage()
    study = optuna.create_study(study_name="s", storage=storage)
    study.tell(study.ask(), 0.5)
    storage.engine.dispose()
    assert [path.name for path in tmp_path.iterdir()] == ["optuna.db"]

"""A new SQLite store begins as a copy of an empty one; nothing that is there is touched."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dpsweep.tracking import mlflow_database as module
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.mlflow_database import begin_database, files_beside
from dpsweep.tracking.mlflow_reach import quiet


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    quiet()
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))


def tables(path: Path) -> dict[str, tuple[list[str], int]]:
    """Return how each table and index is made, but for the order, and how many rows it has."""
    with closing(sqlite3.connect(path)) as database:
        made = database.execute("select name, type, sql from sqlite_master").fetchall()
        count = "select count(*) from "
        return {
            name: (
                sorted((sql or "").replace(",", "").split("\n")),
                database.execute(count + name).fetchone()[0] if kind == "table" else 0,
            )
            for name, kind, sql in made
        }


def test_it_is_the_store_that_mlflow_makes(tmp_path: Path) -> None:
    for name in ("first", "second", "own"):
        path = tmp_path / f"{name}.db"
        if name != "own":
            begin_database(f"sqlite:///{path}")
            assert tables(path)["experiments"][1] == 0
        client = MlflowClient(tracking_uri=f"sqlite:///{path}")
        assert [each.name for each in client.search_experiments()] == ["Default"]
    own = tables(tmp_path / "own.db")
    assert len(own) > 50
    assert tables(tmp_path / "first.db") == tables(tmp_path / "second.db") == own
    with closing(sqlite3.connect(tmp_path / "own.db")) as database:
        version = database.execute("select * from alembic_version").fetchall()
    with closing(sqlite3.connect(tmp_path / "second.db")) as database:
        assert database.execute("select * from alembic_version").fetchall() == version
    # ".first.db.3f..." and its like are gone.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.db", "own.db", "second.db"]


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    path, link = tmp_path / "mine.db", tmp_path / "link.db"
    path.write_bytes(b"whatever")
    link.symlink_to(path)
    for each in (path, link):
        begin_database(f"sqlite:///{each}")
    assert path.read_bytes() == b"whatever"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_store_that_another_process_makes_meanwhile_stays(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "mine.db"
    link = os.link

    def late(source, target) -> None:
        path.write_bytes(b"of another process")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    begin_database(f"sqlite:///{path}")
    assert path.read_bytes() == b"of another process"
    assert [each.name for each in tmp_path.iterdir()] == ["mine.db"]


@pytest.mark.parametrize("uri", ["http://localhost:1", "sqlite:///{}/missing/mine.db"])
def test_elsewhere_nothing_is_made(tmp_path: Path, uri: str) -> None:
    begin_database(uri.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_be_put_mlflow_makes_its_own(tmp_path: Path, monkeypatch) -> None:
    def refuse(source, target) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    begin_database(f"sqlite:///{tmp_path}/mine.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "umask", "database", "files"),
    [
        (0o755, 0o022, 0o600, 0o700),
        (0o755, 0o000, 0o600, 0o700),
        (0o1777, 0o022, 0o600, 0o700),  # /tmp is nobody's team
        (0o2775, 0o002, 0o660, 0o2770),
        (0o770, 0o027, 0o640, 0o750),
        (0o775, 0o077, 0o600, 0o700),
    ],
)
def test_a_new_store_is_closed_to_others(
    tmp_path: Path, monkeypatch, folder, umask, database, files
) -> None:
    monkeypatch.setattr(module, "_empty", lambda: b"empty")
    tmp_path.chmod(folder)
    path = tmp_path / "mine.db"
    before = os.umask(umask)
    try:
        begin_database(f"sqlite:///{path}")
        assert files_beside(path) == tmp_path / "mlartifacts"
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == database
    assert (tmp_path / "mlartifacts").stat().st_mode & 0o7777 == files


def test_the_modes_of_a_store_that_is_there_stay(tmp_path: Path) -> None:
    paths = (tmp_path / "mine.db", tmp_path / "mlartifacts")
    for name, modes in (("first", [0o600, 0o700]), ("second", [0o644, 0o755])):
        MLflowTracker(f"sqlite:///{paths[0]}", name, tmp_path / f"{name}.json")
        assert [path.stat().st_mode & 0o777 for path in paths] == modes
        paths[0].chmod(0o644)
        paths[1].chmod(0o755)

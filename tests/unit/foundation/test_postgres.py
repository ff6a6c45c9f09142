"""What a database must do before a charge may rest on it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from dpsweep.foundation.database_path import DatabasePath, check_server, log_path
from dpsweep.foundation.errors import (
    BadInputError,
    LedgerError,
    LockedError,
    ResourceError,
    StorageError,
    StudyError,
)
from dpsweep.foundation.logs import LogReader, Tail, as_file, is_locked, lock, open_log, read_log
from dpsweep.foundation.postgres import log as postgres_log
from dpsweep.foundation.postgres import sessions
from tests.helpers import postgres
from tests.helpers.logs import content, put


@pytest.fixture
def path(database):
    return DatabasePath(database, uuid.uuid4().hex) / "log.jsonl"


@pytest.fixture
def mortal(database_sessions):
    """A server of this test alone, that may die."""
    with postgres.running() as server:
        yield server


# --- Addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("postgresql://ada:geheim@db/sweeps", "password has no place"),
        ("postgresql://ada@db/sweeps?password=geheim", "'password' has no place"),
        ("postgresql://ada@db/sweeps?options=-csynchronous_commit%3Doff", "'options' has no place"),
        ("postgresql://ada@db", "not an address"),
        ("postgresql://ada@db:port/sweeps", "not an address"),
        ("postgresql://ada:geheim/x@db/sweeps", "its port is no number"),
        ("postgresql://ada:12/geheim@db/sweeps", "password has no place"),
        ("postgresql://ada:geheim#x@db/sweeps", "its port is no number"),
        ("postgresql:///sweeps", "needs its host"),
        ("mysql://ada@db/sweeps", "not an address"),
        ("postgresql://ada@db/sweeps#name", "not an address"),
    ],
)
def test_an_address_names_a_database_and_no_secret(address, problem):
    with pytest.raises(BadInputError, match=problem) as caught:
        check_server(address)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "#", "#a/b", "#../a", "#" + 101 * "a"])
def test_a_dataset_ledger_in_a_database_has_a_name(name):
    with pytest.raises(BadInputError, match="needs a name behind it"):
        log_path(f"postgresql://ada@db/sweeps{name}")


def test_other_paths_are_files():
    assert log_path("budget.jsonl") == Path("budget.jsonl")


# --- Durable, and refused if not -------------------------------------------------------------


def test_a_record_outlives_the_crash_of_its_server(mortal):
    path = DatabasePath(mortal.make("a"), "log")
    with open_log(path) as log:
        log.append({"kind": "charge"})
        mortal.kill()
        threading.Timer(1.0, mortal.start).start()
        log.append({"kind": "after"})  # waits for it
    assert [record["kind"] for record in read_log(path)] == ["charge", "after"]


@pytest.mark.parametrize("setting", ["fsync=off", "synchronous_commit=off"])
def test_a_server_that_forgets_is_refused(path, setting):
    name, value = setting.split("=")

    class Forgetful:
        def execute(self, query):
            return self

        def fetchone(self):
            settings = {"fsync": "on", "synchronous_commit": "on", name: value}
            return (*settings.values(), False)

    with pytest.raises(ResourceError, match=f"has {name} = off"):
        sessions.Session(path.server)._refuse_forgetful(Forgetful())


@pytest.mark.slow
def test_the_servers_own_words_decide_whether_it_forgets(mortal):
    """The settings are asked of the session, so one of the role's or the server's counts."""
    import psycopg

    address = mortal.make("a")
    sessions.Session(address).run(lambda c: None)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("alter system set fsync = off")
    mortal.kill()
    mortal.start()
    with pytest.raises(ResourceError, match="has fsync = off"):
        sessions.Session(address).run(lambda c: None)


@pytest.mark.slow
def test_tables_of_another_format_are_refused(mortal):
    address = mortal.make("a")
    session = sessions.Session(address)
    session.run(lambda c: c.execute(f"update {sessions.SCHEMA}.format set version = 2"))
    session.close()
    with pytest.raises(LedgerError, match="has format 2, and this version reads 1"):
        open_log(DatabasePath(address, "log"))


def test_an_answer_that_was_lost_leaves_the_record_once(path, monkeypatch):
    import psycopg

    log = open_log(path)
    insert = postgres_log.PostgresLog._insert
    calls = []

    def lossy(self, connection, line):
        insert(self, connection, line)
        calls.append(line)
        if len(calls) == 1:
            connection.close()
            raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(postgres_log.PostgresLog, "_insert", lossy)
    log.append({"kind": "charge"})
    log.append({"kind": "next"})
    log.close()
    assert [record["kind"] for record in read_log(path)] == ["charge", "next"]
    assert len(calls) == 3


@pytest.mark.slow
def test_a_log_whose_database_stays_away_takes_no_more(mortal, monkeypatch):
    monkeypatch.setattr(sessions, "PATIENCE_S", 1.0)
    path = DatabasePath(mortal.make("a"), "log")
    log = open_log(path)
    log.append({"kind": "a"})
    mortal.kill()
    with pytest.raises(StorageError, match="does not answer"):
        log.append({"kind": "b"})
    mortal.start()
    with pytest.raises(StorageError, match="was closed when its database was away"):
        log.append({"kind": "c"})
    assert [record["kind"] for record in read_log(path)] == ["a"]


# --- One writer ------------------------------------------------------------------------------


def test_two_writers_exclude_each_other_and_the_second_hears_of_the_first(path):
    log = open_log(path)
    with pytest.raises(LockedError, match=rf"\(process {os.getpid()} on .*since 20"):
        open_log(path)
    assert is_locked(path)
    log.close()
    _until(lambda: not is_locked(path))
    open_log(path).close()


def test_a_writer_that_lost_its_lock_to_another_writes_nothing(path):
    """As after a network that was away: the server has given the lock to somebody else."""
    log = open_log(path)
    log.append({"kind": "mine"})
    _end_session(log)
    other = open_log(path)
    other.append({"kind": "theirs"})
    with pytest.raises(LockedError, match="another process"):
        log.append({"kind": "mine"})
    other.close()
    _until(lambda: not is_locked(path))
    with pytest.raises(LedgerError, match="was written by another process meanwhile"):
        log.append({"kind": "mine"})
    assert [record["kind"] for record in read_log(path)] == ["mine", "theirs"]


def test_a_lock_that_the_session_does_not_hold_is_no_lock(path):
    """As behind a pool that hands sessions around."""
    log = open_log(path)
    log._session.run(lambda c: c.execute("select pg_advisory_unlock_all()"))
    with pytest.raises(LedgerError, match="lost its lock"):
        log.append({"kind": "a"})
    assert read_log(path) == []
    log.close()


def _hold(path, is_held):
    log = open_log(path)
    log.append({"kind": "a"})
    is_held.set()
    time.sleep(60)


def test_kill_9_of_a_writer_frees_its_log(path):
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    writer = context.Process(target=_hold, args=(path, is_held))
    writer.start()
    assert is_held.wait(60)
    with pytest.raises(LockedError):
        open_log(path)
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    _until(lambda: not is_locked(path))
    with open_log(path) as log:
        assert [record["kind"] for record in log.records] == ["a"]


@pytest.mark.slow
def test_the_lock_of_a_study_is_taken_again_after_a_restart(mortal, monkeypatch):
    monkeypatch.setattr(postgres_log, "_BEAT_S", 0.2)
    path = DatabasePath(mortal.make("a"), "digits") / "lock"
    held = lock(path, holder="study 'digits'")
    mortal.kill()
    mortal.start()
    _until(lambda: is_locked(path))
    with pytest.raises(StudyError, match=r"study 'digits' is already running \(process \d+ on"):
        lock(path, holder="study 'digits'")
    held.release()
    _until(lambda: not is_locked(path))


def _end_session(log):
    killer = sessions.reader(log.path.server)
    killer.run(lambda c: c.execute("select pg_terminate_backend(%s, 5000)", (log._backend,)))


def _until(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- Damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: [lines[0], lines[1].replace(b'"b"', b'"x"'), lines[2]],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[1], lines[0], lines[2]],
    ],
)
def test_damaged_rows_are_refused(path, edit):
    with open_log(path) as log:
        for kind in "abc":
            log.append({"kind": kind})
    put(path, b"".join(edit(content(path).splitlines(keepends=True))))
    with pytest.raises(LedgerError, match="damaged or missing"):
        read_log(path)
    with pytest.raises(LedgerError, match="damaged or missing"):
        open_log(path)


def test_a_row_that_was_deleted_is_missed(path):
    with open_log(path) as log:
        for kind in "abc":
            log.append({"kind": kind})
        query = f"delete from {sessions.SCHEMA}.records where seq = 1 and log = %s"
        sessions.reader(path.server).run(lambda c: c.execute(query, (log._id,)))
        with pytest.raises(LedgerError, match=r"log.jsonl was replaced|lost its lock|missing"):
            log.append({"kind": "d"})
    with pytest.raises(LedgerError, match="record missing"):
        read_log(path)


# --- Readers ---------------------------------------------------------------------------------


def test_a_tail_reads_on_where_it_stood(path):
    tail = Tail(path)
    assert (tail.size(), tail.lines(0)) == (0, [])
    with open_log(path) as log:
        log.append({"kind": "a"})
        ((line, place),) = tail.lines(0)
        log.append({"kind": "b"})
    assert line == content(path).splitlines()[0]
    ((line, end),) = tail.lines(place)
    assert b'"b"' in line
    assert end == tail.size()


def test_a_reader_of_rows_sees_new_ones_and_damage(path):
    reader = LogReader(path)
    assert reader.read() == []
    with open_log(path) as log:
        for number in range(3):
            log.append({"trial": number})
            assert reader.read() == read_log(path)
    put(path, content(path).replace(b'"trial":1', b'"trial":2'))
    with pytest.raises(LedgerError, match=":2: record damaged"):
        reader.read()


def test_a_log_becomes_a_file_for_who_needs_one(path):
    with open_log(path) as log:
        log.append({"kind": "a"})
    with as_file(str(path)) as file:
        assert file.name == "log.jsonl"
        assert read_log(file) == read_log(path)


def test_wrong_passwords_and_dead_servers_are_told_soon(path, monkeypatch):
    assert sessions.EARLY_S < 10
    monkeypatch.setattr(sessions, "EARLY_S", 2.0)
    for address, words in (
        ("postgresql://ada@127.0.0.1:1/x", "does not answer: Connection refused"),
        (f"{path.server}-other", "refuses: database .* does not exist"),
    ):
        start = time.monotonic()
        with pytest.raises(StorageError, match=words):
            sessions.refuse_unreachable(address)
        assert time.monotonic() - start < 9
    sessions.reader(path.server).close()
    sessions._shared.clear()
    monkeypatch.setenv("PGPASSWORD", "geheim-und-falsch")
    with pytest.raises(StorageError, match="refuses: password authentication failed") as caught:
        sessions.refuse_unreachable(path.server)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "SSL connection has been closed unexpectedly",
        "SSL SYSCALL error: EOF detected",
        "terminating connection due to administrator command\nSSL connection has been closed",
    ],
)
def test_a_connection_that_breaks_is_made_again_whatever_it_says(path, words):
    import psycopg

    session, calls = sessions.Session(path.server), []

    def action(connection):
        calls.append(connection)
        if len(calls) == 1:
            connection.close()
            raise psycopg.OperationalError(words)
        return connection.execute("select 7").fetchone()[0]

    assert session.run(action) == 7
    assert calls[0] is not calls[1]


def test_without_psycopg_it_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from dpsweep.foundation.postgres.sessions import refuse_unreachable\n"
        "refuse_unreachable('postgresql://ada@127.0.0.1/x')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert 'pip install "dpsweep[server]"' in done.stderr

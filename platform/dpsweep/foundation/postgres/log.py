"""A log in PostgreSQL: the lines of a log file as rows, one writer at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dpsweep.foundation.database_path import DatabasePath
from dpsweep.foundation.durable import Log
from dpsweep.foundation.errors import (
    LedgerError,
    LockedError,
    StorageError,
    StudyError,
    SweepError,
    UnreachableError,
)
from dpsweep.foundation.postgres.sessions import LOCKS, SCHEMA, Session, holder_of, read_lines, who
from dpsweep.foundation.records import NOTHING, Decoded, decode_log, encode_record, raw_of

_BEAT_S = 2.0
_MAKE = f"insert into {SCHEMA}.logs (name) values (%s) on conflict (name) do nothing"
_END = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
    "where pid = %s and application_name = %s and usename = current_user "
    "and pid <> pg_backend_pid()"
)
_LOCK = f"select id, pg_try_advisory_lock({LOCKS}, id) from {SCHEMA}.logs where name = %s"
# A record is written where it comes next, in a log of that name, by the session that has its lock.
_APPEND = f"""
insert into {SCHEMA}.records (log, seq, line)
select id, %(seq)s, %(line)s from {SCHEMA}.logs
where id = %(log)s and name = %(name)s
and (select count(*) from {SCHEMA}.records where log = id) = %(seq)s
and exists (
    select from pg_locks where pid = pg_backend_pid() and locktype = 'advisory' and granted
    and classid = {LOCKS} and objid = id
)
"""


_STATE = f"""
select id, (select count(*) from {SCHEMA}.records where log = id) = %(seq)s
from {SCHEMA}.logs where name = %(name)s
"""


class PostgresLog(Log):
    """An append-only log in a database, with the records and the promises of ``DurableLog``.

    Guarantees:
        When ``append`` returns, the record is committed on the server's disk, behind the one
        before it. A lost connection is made again; whether the record under way was written is
        looked up, so it is there once. Two writers exclude each other by an advisory lock of the
        session, and by its number no record takes another's place, even of a writer whose lock the
        server has given up while its network was away.

        Not covered: rows that somebody with rights on the tables edits; a database that is
        restored from a backup.

    Args:
        path: In which database, and under which name.
        before: What it said when it was open before, which is not decoded again.
    Raises:
        LockedError: It is open for writing elsewhere.
        LedgerError: It is damaged.
        StorageError: The database does not answer.
    """

    def __init__(self, path: DatabasePath, *, before: Decoded | None = None) -> None:
        self.path = path
        self._one_at_a_time = threading.Lock()
        self._id: int | None = None
        self._backend = 0  # the server's number of our session
        self._is_lost = False
        self.records: list[dict[str, Any]] = []
        self._session = Session(path.server, self._take_lock)
        try:
            whole = self._session.run(lambda connection: self._read(before or NOTHING))
        except BaseException:
            self._session.close()
            raise
        self.records = list(whole.records)
        self.whole = NOTHING if before is None else whole

    def _read(self, before: Decoded) -> Decoded:
        return decode_log(raw_of(read_lines(self.path)), str(self.path), before)

    def _take_lock(self, connection: Any) -> None:
        """Take the log's lock with a new connection; what was written meanwhile is not ours."""
        if self._id is None:
            connection.execute(_MAKE, (self.path.key,))
        else:  # the server may not know yet that our session before this one is dead
            connection.execute(_END, (self._backend, who()))
        row = connection.execute(_LOCK, (self.path.key,)).fetchone()
        if row is None or (self._id is not None and row[0] != self._id):
            raise self._replaced("removed" if row is None else "replaced")
        if not row[1]:
            raise LockedError(
                f"{self.path} is being written by another process ({holder_of(self.path)})",
                fix="wait until it has ended; a trial or study runs once at a time",
            )
        self._id, self._backend = row[0], connection.info.backend_pid

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write one record and return it, sequence number included, once it is on the disk.

        Raises:
            LedgerError: The log was removed or replaced, or another process has written to it;
                nothing was written.
            StorageError: The database does not answer, and the record may or may not be there. This
                log takes no other: whoever opens it next sees what is there.
        """
        with self._one_at_a_time:
            if self._is_lost:
                raise UnreachableError(
                    f"{self.path} was closed when its database was away",
                    fix="run the same command again",
                )
            numbered = {"seq": len(self.records), **record}
            line = encode_record(numbered).removesuffix("\n")
            try:
                self._session.run(lambda connection: self._insert(connection, line))
            except StorageError:
                self._is_lost = True
                self._session.close()
                raise
            self.records.append(numbered)
        return numbered

    def _insert(self, connection: Any, line: str) -> None:
        seq = len(self.records)
        names = {"seq": seq, "line": line, "log": self._id, "name": self.path.key}
        if connection.execute(_APPEND, names).rowcount == 1:
            return
        behind = read_lines(self.path, seq)
        if behind == [line]:  # it was written, and the answer was lost
            # What waits for a standby waits for all before it: for the record, too.
            connection.execute("select pg_logical_emit_message(true, 'dpsweep', '')")
            return
        if behind:
            raise LedgerError(
                f"{self.path} was written by another process meanwhile",
                because="the connection with the database was lost, and with it the lock",
                fix="run the same command again when that process has ended",
            )
        row = connection.execute(_STATE, names).fetchone()
        if row == (self._id, True):
            raise LedgerError(
                f"{self.path} lost its lock while it was being written",
                because="another program shares its session, so the lock keeps nobody out",
                fix="connect without a pool, or with one that keeps sessions (PgBouncer: "
                "pool_mode = session)",
            )
        raise self._replaced("removed" if row is None else "replaced")

    def _replaced(self, how: str) -> LedgerError:
        return LedgerError(
            f"{self.path} was {how} while it was being written",
            because="what follows would be on record nowhere",
            fix="restore it, or start a new study under another name",
        )

    def touch(self) -> None:
        """Make sure of the connection, and so of the lock.

        Raises:
            LockedError: Another process has taken it while the database was away.
            StorageError: The database does not answer.
        """
        self._session.run(lambda connection: connection.execute("select 1"))

    def close(self) -> None:
        """Release the log and its lock; safe to call twice."""
        self._session.close()


class PostgresLock:
    """An exclusive lock that the database releases when the process, or its node, has ended.

    A thread takes it again when the database has restarted. Whoever is quicker then has it; so it
    says who runs a study, and what keeps two writers apart is the lock of each log.

    Args:
        path: Name of the lock in its database.
        holder: What is locked, for people: "study 'digits'".
    Raises:
        StudyError: Another process holds it; with who that is, and since when.
        StorageError: The database does not answer.
    """

    def __init__(self, path: DatabasePath, *, holder: str) -> None:
        try:
            self._log = PostgresLog(path)
        except LockedError as error:
            by = holder_of(path)
            raise StudyError(
                f"{holder} is already running" + (f" ({by})" if by else ""),
                fix="wait for it, or stop it with Ctrl-C; `dpsweep status` shows its progress",
            ) from error
        self._is_over = threading.Event()
        threading.Thread(target=self._hold, name="dpsweep-lock", daemon=True).start()

    def _hold(self) -> None:
        while not self._is_over.wait(_BEAT_S):
            try:
                self._log.touch()
            except SweepError:  # the journal's next record fails, and says why
                return

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        self._is_over.set()
        self._log.close()

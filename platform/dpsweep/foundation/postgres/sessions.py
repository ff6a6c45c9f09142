"""Sessions with PostgreSQL: made again when they break, durable, in one schema of our own."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from dpsweep.foundation.errors import LedgerError, ResourceError, StorageError
from dpsweep.foundation.servers import is_hopeless, refusal, rights_refusal, silence

_Result = TypeVar("_Result")

#: How long a running study waits for a database that is away: restarts take seconds.
PATIENCE_S = 60.0
#: How long somebody at a keyboard waits for one.
EARLY_S = 8.0
_POLL_S = 0.5
SCHEMA = "dpsweep"
#: First key of our advisory locks, so that those of other programs are none of ours.
LOCKS = 0x64707377
_VERSION = 1
_MAKE = f"""
create schema if not exists {SCHEMA};
create table if not exists {SCHEMA}.format (version integer not null);
create table if not exists {SCHEMA}.logs (
    id integer generated always as identity primary key,
    name text not null unique,
    made timestamptz not null default now()
);
create table if not exists {SCHEMA}.records (
    log integer not null references {SCHEMA}.logs on delete cascade,
    seq bigint not null,
    line text not null,
    primary key (log, seq)
);
insert into {SCHEMA}.format select {_VERSION} where not exists (select from {SCHEMA}.format);
"""


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ResourceError(
            "a study in a database needs psycopg",
            because=str(error),
            fix='pip install "dpsweep[server]", on every node',
        ) from error
    return psycopg


def who() -> str:
    """Return what the server calls this process by, for whoever waits for it."""
    return f"dpsweep process {os.getpid()} on {socket.gethostname()}"[:63]


def _ways_to_prove(psycopg: Any) -> dict[str, str]:
    """Return how this process lets itself be asked who it is: never by the password in clear.

    The address may come from a study's spec.yaml that somebody else has written; a server of theirs
    would be told the password. ``PGREQUIREAUTH`` allows other ways, as libpq has it.
    """
    if "PGREQUIREAUTH" in os.environ or psycopg.pq.version() < _KNOWS_WAYS:
        return {}
    return {"require_auth": "scram-sha-256,gss,sspi,none"}


#: Version of libpq that knows ``require_auth``.
_KNOWS_WAYS = 160_000


class LogName(Protocol):
    """Where a log lies: ``DatabasePath``."""

    @property
    def server(self) -> str:
        """Address of the database, without a password."""

    @property
    def key(self) -> str:
        """Name of the log there."""


class Session:
    """One connection with a database, made again when it breaks.

    Guarantees:
        What a statement has written is on the server's disk when ``run`` returns; a server, or a
        user there, that answers before is refused.

        Not covered: a server whose disk lies; a standby that takes over before it has everything
        (the server's ``synchronous_standby_names`` decides).

    Args:
        server: Address of the database.
        on_connect: Called with each new connection, before it is used.
        patience_s: How long to wait for the first connection; None: as for later ones.
    """

    def __init__(
        self,
        server: str,
        on_connect: Callable[[Any], None] | None = None,
        *,
        patience_s: float | None = None,
    ) -> None:
        self.server, self._on_connect = server, on_connect
        self._patience_s = PATIENCE_S if patience_s is None else patience_s
        self._connection: Any = None
        self._is_closed = self._has_connected = False
        self._one_at_a_time = threading.RLock()

    def run(self, action: Callable[[Any], _Result]) -> _Result:
        """Call ``action`` with the connection, again with a new one as often as it breaks.

        ``action`` must bear being called twice, where the first call was lost on its way back.

        Raises:
            UnreachableError: The database has not answered in time.
            StorageError: It refuses.
        """
        psycopg = _psycopg()
        deadline = time.monotonic() + self._patience_s
        with self._one_at_a_time:
            while True:
                if self._is_closed:
                    raise StorageError(f"the session with {self.server} is closed")
                try:
                    if self._connection is None:
                        self._connection = self._connect()
                        self._patience_s, self._has_connected = PATIENCE_S, True
                    return action(self._connection)
                except psycopg.Error as error:
                    is_connecting = self._connection is None
                    is_broken = is_connecting or self._connection.broken
                    self._drop()
                    is_short = isinstance(error, psycopg.OperationalError)
                    is_refused = is_connecting and is_hopeless(error)
                    if is_refused or not (is_broken or is_short):
                        raise refusal(self.server, error) from error
                    if time.monotonic() >= deadline:
                        raise silence(self.server, error) from error
                    time.sleep(_POLL_S)

    def _connect(self) -> Any:
        psycopg = _psycopg()
        connection = psycopg.connect(
            self.server,
            autocommit=True,
            connect_timeout=5,
            application_name=who(),
            keepalives_idle=20,
            keepalives_interval=5,
            keepalives_count=4,
            tcp_user_timeout=40_000,
            **_ways_to_prove(psycopg),
            options="-c synchronous_commit=on -c statement_timeout=30000 "
            "-c tcp_keepalives_idle=20 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4",
        )
        try:
            self._refuse_forgetful(connection)
            _make_schema(connection)
            if self._on_connect is not None:
                self._on_connect(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_forgetful(self, connection: Any) -> None:
        """Refuse a server that says a record is written before it is on disk."""
        row = connection.execute(
            "select current_setting('fsync'), current_setting('synchronous_commit'), "
            "pg_is_in_recovery()"
        ).fetchone()
        if row[2] and self._has_connected:  # it may be about to take over
            raise _psycopg().OperationalError("the server only reads: it is a standby")
        if row[2]:
            raise ResourceError(
                f"the database {self.server} is a standby, which only reads",
                fix="name the primary server",
            )
        for name, value in zip(("fsync", "synchronous_commit"), row[:2], strict=True):
            if value == "off":
                raise ResourceError(
                    f"the database {self.server} has {name} = off",
                    because="it would forget privacy charges when its machine stops",
                    fix=f"set {name} = on there",
                )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """End the connection, and with it every lock it holds; for good, and safe to call twice."""
        self._is_closed = True
        with self._one_at_a_time:
            if self._connection is not None:
                # The server ends a session a moment after its connection, and its locks with it.
                with contextlib.suppress(_psycopg().Error):
                    self._connection.execute("select pg_advisory_unlock_all()")
            self._drop()


def _make_schema(connection: Any) -> None:
    """Make our tables where they are not there yet; refuse those of another version."""
    if connection.execute(f"select to_regclass('{SCHEMA}.records')").fetchone()[0] is None:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s, 0)", (LOCKS,))
            connection.execute(_MAKE)
    version = connection.execute(f"select max(version) from {SCHEMA}.format").fetchone()[0]
    if version != _VERSION:
        raise LedgerError(
            f"schema {SCHEMA} of the database has format {version}, and this version reads "
            f"{_VERSION}",
            fix="use the version of dpsweep that made it",
        )


@contextlib.contextmanager
def making_tables(server: str) -> Iterator[None]:
    """Let nobody else of us make tables in a database meanwhile.

    Raises:
        StorageError: It refuses, or does not answer.
    """
    session = Session(server)
    try:
        session.run(lambda c: c.execute("select pg_advisory_lock(%s, 0)", (LOCKS,)))
        yield
    finally:
        session.close()


_shared: dict[tuple[int, str], Session] = {}
_silent: dict[tuple[int, str], float] = {}
_HOLDS_S = 60.0


def reader(server: str) -> Session:
    """Return the session in which this process reads from a database."""
    key = (os.getpid(), server)
    if key not in _shared:
        _shared[key] = Session(server, patience_s=EARLY_S)
        atexit.register(_shared[key].close)
    return _shared[key]


def refuse_unreachable(server: str) -> None:
    """Refuse a database that this process has never reached and that does not answer in seconds.

    Raises:
        StorageError: It is.
    """
    reader(server).run(lambda connection: connection.execute("select 1"))


# What a study does with our tables, and needs of them; of Optuna's it needs all.
_READS = {"format": "select", "alembic_version": "select", "version_info": "select"}
_NEEDS = {**_READS, "logs": "select insert update", "records": "select insert", "logs_id_seq": ""}
_LACKING = f"""
select relname, need from pg_class, unnest(array['select', 'insert', 'update', 'delete']) as need
where relnamespace = '{SCHEMA}'::regnamespace and relkind = 'r'
and not has_table_privilege(pg_class.oid, need)
union all select relname, 'usage' from pg_class where relnamespace = '{SCHEMA}'::regnamespace
and case when relkind = 'S' then not has_sequence_privilege(oid, 'usage') end
order by 1, 2
"""
_MAY_MAKE = f"""
select to_regclass('{SCHEMA}.trials') is not null
or has_schema_privilege('{SCHEMA}', 'create'), current_user
"""


def refuse_unwritable(server: str, *, has_optuna: bool = False) -> None:
    """Refuse a database that does not answer in seconds, or in which we may not write.

    Args:
        server: Address of the database.
        has_optuna: Optuna's study is to be there, too.
    Raises:
        StorageError: It is.
    """
    rows = reader(server).run(lambda connection: connection.execute(_LACKING).fetchall())
    may_make, role = reader(server).run(lambda connection: connection.execute(_MAY_MAKE).fetchone())
    of_optuna = "select insert update delete usage" if has_optuna else ""
    lacking = [
        f"{need} on {SCHEMA}.{name}"
        for name, need in rows
        if need in _NEEDS.get(name, of_optuna).split()
    ]
    if has_optuna and not may_make:
        lacking.append(f"create on schema {SCHEMA}, for Optuna's tables")
    if lacking:
        raise rights_refusal(server, role, lacking)


def answers(server: str) -> bool:
    """Say whether a database lets itself be read now; that it does not holds for a minute."""
    key = (os.getpid(), server)
    if time.monotonic() - _silent.get(key, -math.inf) < _HOLDS_S:
        return False
    try:
        refuse_unreachable(server)
    except StorageError:
        _silent[key] = time.monotonic()
        return False
    return True


def has_log(path: LogName) -> bool:
    """Say whether a log is there."""
    query = f"select exists (select from {SCHEMA}.logs where name = %s)"
    return bool(reader(path.server).run(lambda c: c.execute(query, (path.key,)).fetchone()[0]))


def logs_below(path: LogName) -> list[str]:
    """Return the names of all logs below a folder, in their order."""
    query = f"select name from {SCHEMA}.logs where starts_with(name, %s) order by name"
    rows = reader(path.server).run(lambda c: c.execute(query, (f"{path.key}/",)).fetchall())
    return [row[0] for row in rows]


def rename_log(path: LogName, target: LogName) -> None:
    """Give a log another name."""
    query = f"update {SCHEMA}.logs set name = %s where name = %s"
    reader(path.server).run(lambda c: c.execute(query, (target.key, path.key)))


def remove_log(path: LogName) -> bool:
    """Remove a log with its records; say whether it was there."""
    query = f"delete from {SCHEMA}.logs where name = %s"
    count = reader(path.server).run(lambda c: c.execute(query, (path.key,)).rowcount)
    return bool(count)


def read_lines(path: LogName, first: int = 0) -> list[str]:
    """Return the lines of a log from a sequence number on; none if it is not there.

    Raises:
        LedgerError: A number is missing, so the log cannot be trusted.
    """
    query = (
        f"select seq, line from {SCHEMA}.records join {SCHEMA}.logs on log = id "
        "where name = %s and seq >= %s order by seq"
    )
    rows = reader(path.server).run(lambda c: c.execute(query, (path.key, first)).fetchall())
    for number, (seq, _) in enumerate(rows, start=first):
        if seq != number:
            raise LedgerError(
                f"{path}:{number + 1}: record missing; the log cannot be trusted",
                fix="restore the database from a backup, or start a new study",
            )
    return [line for _, line in rows]


def count_lines(path: LogName) -> int:
    """Return how many lines a log has; none if it is not there."""
    query = (
        f"select coalesce(max(seq) + 1, 0) from {SCHEMA}.records join {SCHEMA}.logs on log = id "
        "where name = %s"
    )
    return int(reader(path.server).run(lambda c: c.execute(query, (path.key,)).fetchone()[0]))


def holder_of(path: LogName) -> str | None:
    """Return who holds the lock of a log, in the server's words, or None: nobody does."""
    query = (
        "select application_name, client_addr, backend_start from pg_locks "
        "join pg_stat_activity using (pid) "
        "where locktype = 'advisory' and classid = %s and granted "
        "and pg_locks.database = (select oid from pg_database where datname = current_database()) "
        f"and objid = (select id from {SCHEMA}.logs where name = %s)"
    )
    row = reader(path.server).run(lambda c: c.execute(query, (LOCKS, path.key)).fetchone())
    if row is None:
        return None
    name, address, since = row
    text = (name or "another program").removeprefix("dpsweep ")
    if address is not None:
        text += f", connected from {address}"
    if since is None:  # of a session of another role the server says no more
        return text
    return f"{text}, since {since:%Y-%m-%d %H:%M} {since.tzname() or ''}".rstrip()

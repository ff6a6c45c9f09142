"""The bytes of a log, wherever it lies: read, and put there as somebody with all rights could."""

from dpsweep.foundation.database_path import DatabasePath
from dpsweep.foundation.postgres import sessions


def content(path) -> bytes:
    if isinstance(path, DatabasePath):
        query = (
            f"select line from {sessions.SCHEMA}.records join {sessions.SCHEMA}.logs on log = id "
            "where name = %s order by seq"
        )
        rows = sessions.reader(path.server).run(lambda c: c.execute(query, (path.key,)).fetchall())
        return b"".join(f"{line}\n".encode() for (line,) in rows)
    return path.read_bytes()


def put(path, raw: bytes) -> None:
    if not isinstance(path, DatabasePath):
        path.write_bytes(raw)
        return
    lines = raw.decode().splitlines()

    def write(connection):
        with connection.transaction():
            connection.execute(
                f"insert into {sessions.SCHEMA}.logs (name) values (%s) on conflict do nothing",
                (path.key,),
            )
            place = f"(select id from {sessions.SCHEMA}.logs where name = %s)"
            connection.execute(
                f"delete from {sessions.SCHEMA}.records where log = {place}", (path.key,)
            )
            for seq, line in enumerate(lines):
                connection.execute(
                    f"insert into {sessions.SCHEMA}.records select {place}, %s, %s",
                    (path.key, seq, line),
                )

    sessions.reader(path.server).run(write)

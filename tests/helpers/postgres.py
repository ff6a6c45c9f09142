"""A PostgreSQL server of a test's own, with a password, that may be killed and started again."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from dpsweep.foundation.postgres import sessions
from tests.helpers.mlflow_servers import free_port

_FOUND = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
BINARIES = next((place for place in _FOUND if (place / "initdb").exists()), None)
if BINARIES is None and shutil.which("initdb"):
    BINARIES = Path(shutil.which("initdb")).resolve().parent
WHY_NOT = "no PostgreSQL server here (apt-get install postgresql)"
PASSWORD = "token-of-the-database-3f81"
USER = "ada"


def _as_somebody() -> dict:
    """Return what makes a process run as an ordinary user: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def sessions_of_its_own():
    """Give the password to what runs within, and close every session that it leaves open."""
    made, make = [], sessions.Session.__init__

    def noted(self, *arguments, **options):
        made.append(self)
        make(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", PASSWORD)
        patch.setattr(sessions, "_shared", {})
        patch.setattr(sessions.Session, "__init__", noted)
        yield
        for session in made:
            session.close()


@contextlib.contextmanager
def running():
    """Run a server for the while; skip where none is installed."""
    if BINARIES is None:
        pytest.skip(WHY_NOT)
    server = Postgres()
    server.start()
    try:
        yield server
    finally:
        server.remove()


class Postgres:
    """A server on a port of this machine; ``PGPASSWORD`` must be ``PASSWORD``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.port = free_port()
        self._process: subprocess.Popen | None = None
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody")
            shutil.chown(secret, "nobody")
        self._run(
            "initdb", "--pgdata", self.folder / "data", "--username", USER, "--auth",
            "scram-sha-256", "--pwfile", secret, "--encoding", "UTF8", "--no-locale",
        )  # fmt: skip

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(BINARIES / program), *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **_as_somebody())

    def address(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(BINARIES / "postgres"), "-D", str(self.folder / "data"),
                    "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
                    "-c", "unix_socket_directories=", "-c", "shared_buffers=32MB",
                ],
                stdout=log, stderr=log, cwd="/", start_new_session=True, **_as_somebody(),
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.1)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.address("postgres"), password=PASSWORD, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def make(self, database: str) -> str:
        """Make an empty database and return its address."""
        import psycopg

        with psycopg.connect(self.address("postgres"), password=PASSWORD, autocommit=True) as c:
            c.execute(f'create database "{database}"')
        return self.address(database)

    def kill(self) -> None:
        """End it as a crash of its machine would."""
        if self._process is not None:
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            self._process.kill()
            for process in map(int, children):  # each has a session of its own
                with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                    os.kill(process, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

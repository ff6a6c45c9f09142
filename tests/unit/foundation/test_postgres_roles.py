"""Roles of a database: what each must be granted, and what is said where something lacks."""

import contextlib
import uuid
from pathlib import Path

import optuna
import psycopg
import pytest

from dpsweep.foundation import servers
from dpsweep.foundation.database_path import DatabasePath
from dpsweep.foundation.errors import LockedError, StorageError
from dpsweep.foundation.logs import is_locked, open_log, read_log
from dpsweep.foundation.postgres import sessions
from dpsweep.search.optuna_file import OptunaDatabase, unusable
from tests.helpers import postgres

_PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
_LINES = _PAGE.read_text().partition("```sql\n")[2].partition("```")[0]
GRANTS = tuple(line.rstrip(";").replace(" bob", " {}") for line in _LINES.splitlines())


@pytest.fixture
def address(database_server, database_sessions):
    """Of an empty database of the test's own."""
    return database_server.make(uuid.uuid4().hex)


@pytest.fixture
def owned(address):
    """Of a database in which its owner has run a study."""
    put_study(address, "first")
    return address


def put_study(address, name):
    with contextlib.closing(open_log(DatabasePath(address, name) / "log.jsonl")) as log:
        log.append({"spent": 1})
    place = OptunaDatabase(DatabasePath(address, name))
    for _ in range(2):
        study = optuna.create_study(storage=place.storage(), study_name=name)
        study.set_user_attr("enqueued", True)
        study.enqueue_trial({"lr": 0.5})
        trial = study.ask()
        trial.suggest_float("lr", 0, 1)
        trial.report(0.5, 1)
        trial.set_user_attr("dp/epsilon_is", "composed")
        study.tell(trial, 0.5)
        place.relabel("unaccounted")
        if len(optuna.get_all_study_names(place.storage())) == 1:
            break
        place.make_way()


def role(address, *grants, limit=-1):
    """Make a role and return the address with it."""
    name = f"r{uuid.uuid4().hex[:12]}"
    with psycopg.connect(address, autocommit=True) as owner:
        owner.execute(
            f"create role {name} login password '{postgres.PASSWORD}' connection limit {limit}"
        )
        for grant in grants:
            owner.execute(grant.format(name))
    return address.replace(f"{postgres.USER}@", f"{name}@")


@pytest.mark.parametrize(
    "words",
    [
        'FATAL:  too many connections for role "ada"',
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "FATAL: no more connections allowed (max_client_conn)",
    ],
)
def test_a_server_without_a_free_connection_is_not_silent(words):
    error = servers.silence("postgresql://ada@db/sweeps", psycopg.OperationalError(words))
    assert "has no free connection" in error.message
    assert "max_connections" in error.fix
    assert "search.max_concurrent" in error.fix


@pytest.mark.slow
def test_a_role_at_its_limit_is_told_how_to_get_a_connection(owned, monkeypatch):
    monkeypatch.setattr(sessions, "EARLY_S", 1.0)
    monkeypatch.setattr(sessions, "PATIENCE_S", 1.0)
    busy = role(owned, *GRANTS, limit=1)
    with psycopg.connect(busy):
        with pytest.raises(StorageError, match="has no free connection: too many") as caught:
            sessions.refuse_unreachable(busy)
        assert "start it" not in caught.value.fix
        place = OptunaDatabase(DatabasePath(busy, "mine"))
        with pytest.raises(StorageError, match="has no free connection"):
            place.storage()
        with pytest.raises(Exception, match="too many") as of_optuna:
            optuna.storages.RDBStorage(place._url)
    words = str(unusable(place, of_optuna.value))
    assert "cannot be used: too many connections" in words
    assert "search.max_concurrent" in words
    assert "disk" not in words


def test_of_a_database_no_disk_is_said_to_be_full(tmp_path):
    error = optuna.exceptions.StorageInternalError("no")
    assert "disk" not in str(
        unusable(OptunaDatabase(DatabasePath("postgresql://a@b/c", "d")), error)
    )
    assert "the disk is full" in str(unusable(None, error))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("grants", "words"),
    [
        ((), "usage on schema dpsweep"),
        (GRANTS[:1], "select, insert, update"),
    ],
)
def test_a_role_without_a_right_is_told_what_its_owner_grants(owned, grants, words):
    with pytest.raises(StorageError, match="permission denied") as caught:
        sessions.refuse_unwritable(role(owned, *grants))
    assert words in caught.value.fix
    assert "PGPASSWORD" not in caught.value.fix


def test_a_role_that_may_not_make_the_schema_or_connect_is_told_so(address):
    stranger = role(address)
    with pytest.raises(StorageError, match="permission denied for database") as caught:
        sessions.refuse_unwritable(stranger)
    assert "create on the database" in caught.value.fix
    with psycopg.connect(address, autocommit=True) as owner:
        owner.execute(f'revoke connect on database "{owner.info.dbname}" from public')
    with pytest.raises(StorageError, match="permission denied for database") as caught:
        sessions.refuse_unwritable(stranger)
    assert "connect on the database" in caught.value.fix


def test_whoever_may_make_the_schema_needs_nothing_else(address):
    owner = role(address, f'grant create on database "{address.rpartition("/")[2]}" to {{}}')
    sessions.refuse_unwritable(owner, has_optuna=True)
    put_study(owner, "first")


def test_a_role_that_only_reads_is_refused_before_it_writes_and_reads(owned):
    reader = role(owned, GRANTS[0], "grant select on all tables in schema dpsweep to {}")
    assert sessions.answers(reader)
    assert read_log(DatabasePath(reader, "first") / "log.jsonl")[0]["spent"] == 1
    with pytest.raises(
        StorageError, match=r"not let r.* write: .*insert on dpsweep\.logs"
    ) as caught:
        sessions.refuse_unwritable(reader)
    assert "grant" in caught.value.fix


def test_the_rights_of_the_manual_are_enough_for_a_study(owned):
    assert len(GRANTS) == 5
    colleague = role(owned, *GRANTS)
    sessions.refuse_unwritable(colleague, has_optuna=True)
    put_study(colleague, "second")
    with (
        psycopg.connect(colleague) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("delete from dpsweep.records")  # what was spent


@pytest.mark.parametrize("number", [i for i, g in enumerate(GRANTS) if g.startswith("grant")])
def test_each_grant_of_the_manual_is_needed(owned, number):
    lacking = role(owned, *GRANTS[:number], *GRANTS[number + 1 :])
    with pytest.raises(StorageError) as caught:
        sessions.refuse_unwritable(lacking, has_optuna=True)
    assert "must grant you" in caught.value.fix


def test_optunas_tables_that_are_not_there_need_create_on_the_schema(address):
    open_log(DatabasePath(address, "x") / "log.jsonl").close()
    colleague = role(address, *GRANTS)
    sessions.refuse_unwritable(colleague)
    with pytest.raises(StorageError, match="create on schema dpsweep"):
        sessions.refuse_unwritable(colleague, has_optuna=True)


def test_roles_of_their_own_share_one_address(owned, monkeypatch):
    shared = owned.replace(f"{postgres.USER}@", "")
    monkeypatch.setenv("PGUSER", postgres.USER)
    path = DatabasePath(shared, "first") / "log.jsonl"
    with contextlib.closing(open_log(path)) as log:
        sessions._shared.clear()
        colleague = role(owned, *GRANTS).partition("@")[0].rpartition("/")[2]
        monkeypatch.setenv("PGUSER", colleague)
        sessions.refuse_unwritable(shared, has_optuna=True)
        put_study(shared, "second")
        assert is_locked(path)
        with pytest.raises(LockedError, match=r"being written by another process \(process \d+ on"):
            open_log(path)
        log.append({"spent": 2})
    with contextlib.closing(open_log(path)) as log:
        assert len(log.records) == 2

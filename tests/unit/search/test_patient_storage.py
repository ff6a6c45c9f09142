"""Optuna's study in a database that goes away in the middle of a call, before or after it acts."""

import optuna
import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError, PendingRollbackError
from whole_studies import make_spec

from dpsweep.foundation.database_path import DatabasePath
from dpsweep.foundation.postgres.sessions import LOCKS
from dpsweep.search import optuna_file, suggestions
from dpsweep.search.optuna_file import OptunaDatabase, PatientStorage
from dpsweep.search.suggestions import Suggestions
from dpsweep.search.write_through import WriteThroughStorage
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.study import SweepSpec


def test_every_call_of_a_storage_is_patient():
    assert optuna.storages.BaseStorage.__abstractmethods__ <= vars(PatientStorage).keys()


GONE, BROKEN = OperationalError("", {}, Exception()), PendingRollbackError()


class Place:
    def __init__(self, url):
        self.kept = PatientStorage(url)

    def storage(self):
        return self.kept

    def exists(self):
        return False

    def problem(self):
        return ""

    def make_way(self):
        pass


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("sampler", "error"),  # each sampler with each error, in two of four ways every time
    [
        pytest.param("random", GONE, id="random-gone"),
        pytest.param("grid", BROKEN, id="grid-broken"),
        pytest.param("random", BROKEN, id="random-broken", marks=pytest.mark.slow),
        pytest.param("grid", GONE, id="grid-gone", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "name",
    ["create_new_trial", "set_trial_param", "set_trial_state_values", "set_trial_user_attr",
     "set_trial_intermediate_value"],
)  # fmt: skip
def test_every_trial_is_asked_for_once_and_told(tmp_path, monkeypatch, name, when, sampler, error):
    monkeypatch.setattr(optuna_file.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(suggestions, "place_of", lambda path: Place(f"sqlite:///{path}"))
    if name == "set_trial_param" and sampler == "random":
        name = "create_new_trial"  # which writes what was drawn
    raw = make_spec(tmp_path, "patient", tracking={"uri": None})
    space = {"method": "dp_sgd", "optim.lr": {"choice": [0.1, 0.2, 0.3, 0.4]}}
    raw["search"] |= {"sampler": sampler, "space": space, "num_trials": 4}
    spec = SweepSpec(**raw)
    space = SearchSpace.from_spec(spec.space)

    def run(file):
        search, told = Suggestions(spec, space, path=tmp_path / file), {}
        for _ in range(4):
            number, config = search.ask()
            search.report(number, 5, 0.25)
            search.tell(number, "finished", [config["optim.lr"]], epsilon=1.0)
            told[number] = config["optim.lr"]
        return told, search._study.get_trials()

    wanted, _ = run("whole.db")
    call, calls = getattr(optuna.storages.RDBStorage, name), []

    def breaks(*arguments, **options):
        calls.append(name)
        is_down = len(calls) % 3 == 1
        answer = None if is_down and when == "before" else call(*arguments, **options)
        if is_down:
            raise optuna.exceptions.StorageInternalError from error
        return answer

    monkeypatch.setattr(optuna.storages.RDBStorage, name, breaks)
    told, trials = run("broken.db")
    assert len(calls) >= 4
    assert told == wanted
    ended = {trial.number: trial.value for trial in trials if trial.state.name == "COMPLETE"}
    assert ended == wanted


def test_only_one_launch_makes_tables_at_a_time(database_server, database_sessions, monkeypatch):
    """Optuna asks whether its tables are there, and then makes them; two that do so collide."""
    address = database_server.make("tables")
    held = []

    def make(*args, **kwargs):
        with psycopg.connect(address) as other:
            row = other.execute("select pg_try_advisory_lock(%s, 0)", (LOCKS,)).fetchone()
        held.append(not row[0])
        return PatientStorage(*args, **kwargs)

    monkeypatch.setattr(optuna_file, "PatientStorage", make)
    for name in ("a", "b"):
        assert not OptunaDatabase(DatabasePath(address, name)).exists()
    assert held == [True, True]
    with psycopg.connect(address) as other:
        assert other.execute("select pg_try_advisory_lock(%s, 0)", (LOCKS,)).fetchone()[0]


@pytest.mark.parametrize("table", ["trial_params", "trials"])
def test_a_session_that_breaks_while_trials_are_read_is_given_up(
    database_server, database_sessions, table
):
    """Optuna catches the loss itself, asks in another way, and then commits a broken session."""
    address = database_server.make(f"broken-{table}")
    url = address.replace("postgresql://", "postgresql+psycopg://")
    storage = PatientStorage(url, engine_kwargs={"pool_pre_ping": True})
    study = optuna.create_study(storage=storage)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    lost = []

    def lose(connection, cursor, statement, parameters, context, many):
        if statement.startswith(f"SELECT {table}.") and not lost:
            lost.append(statement)
            with psycopg.connect(address, autocommit=True) as other:
                pid = cursor.connection.info.backend_pid
                other.execute("select pg_terminate_backend(%s)", [pid])
                while other.execute(
                    "select from pg_stat_activity where pid = %s", [pid]
                ).fetchone():
                    pass

    event.listen(storage.engine, "before_cursor_execute", lose)
    trials = storage.get_all_trials(study._study_id)
    assert len(lost) == 1
    assert [trial.params for trial in trials] == [trial.params for trial in study.trials]
    storage.engine.dispose()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("error", [GONE, BROKEN], ids=["gone", "broken"])
@pytest.mark.parametrize("name", ["create_new_study", "get_all_trials", "get_study_user_attrs"])
def test_a_study_is_opened_though_an_answer_is_lost(tmp_path, monkeypatch, name, error):
    monkeypatch.setattr(optuna_file.time, "sleep", lambda seconds: None)
    url = f"sqlite:///{tmp_path}/opened.db"
    directions = [optuna.study.StudyDirection.MAXIMIZE]
    study = optuna.create_study(storage=PatientStorage(url), study_name="a", direction="maximize")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    call, calls = getattr(optuna.storages.RDBStorage, name), []

    def breaks(*arguments, **options):
        calls.append(name)
        if len(calls) == 1:
            raise optuna.exceptions.StorageInternalError from error
        return call(*arguments, **options)

    monkeypatch.setattr(optuna.storages.RDBStorage, name, breaks)
    opened = WriteThroughStorage(PatientStorage(url), "a", directions)
    assert len(calls) == 2
    read = opened.get_all_trials(0, deepcopy=False)
    assert [trial.params for trial in read] == [trial.params for trial in study.trials]

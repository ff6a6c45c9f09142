"""What is asked of a SQL server before a new study starts, and what is said of one that refuses."""

import socket
import sys
import time
from types import SimpleNamespace

import pytest

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.planning import places
from dpsweep.tracking import refuse_unreachable
from dpsweep.tracking.memory import MemoryTracker
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.spool import Spool
from tests.helpers import postgres

CLOSED = "postgresql+psycopg://bob@127.0.0.1:9/mlf"


def choice_of(uri):
    return SimpleNamespace(kind="mlflow", uri=uri, experiment=None)


def refused(uri):
    started = time.monotonic()
    with pytest.raises(BadInputError) as caught:
        refuse_unreachable(choice_of(uri), "digits")
    assert time.monotonic() - started < 15
    return caught.value


def wait_for(messages):
    deadline = time.monotonic() + 30
    while not messages and time.monotonic() < deadline:
        time.sleep(0.05)


def test_nobody_at_the_address_is_told_at_once_and_without_the_password():
    error = refused("postgresql+psycopg://me:sesame@127.0.0.1:9/mlf")
    assert error.message == (
        "the tracking store postgresql+psycopg://me:***@127.0.0.1:9/mlf cannot be reached"
    )
    assert error.because == "connection refused"
    assert "set it to null" in error.fix
    assert "sesame" not in str(error) + error.fix


def test_a_wrong_password_is_told_and_the_right_one_lets_in(database_server, monkeypatch):
    uri = database_server.make("reach").replace("postgresql://", "postgresql+psycopg://")
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    refuse_unreachable(choice_of(uri), "digits")
    monkeypatch.setenv("PGPASSWORD", "sesame")
    error = refused(uri)
    assert error.because.startswith("password authentication failed for user ")
    assert "PGPASSWORD" in error.fix
    assert "sesame" not in str(error) + error.fix


def test_a_server_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr("dpsweep.tracking.mlflow_database.PATIENCE_S", 0.5)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        error = refused(f"postgresql+psycopg://bob@127.0.0.1:{port}/mlf")
    assert error.because == "no answer within 0.5 s"


@pytest.mark.parametrize("uri", ["mysql+nosuch://bob@127.0.0.1:9/x", "mssql://bob@127.0.0.1:9/x"])
def test_a_driver_that_is_not_there_is_told(uri, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyodbc", None)
    assert "the driver that it names is not installed" in refused(uri).because


def test_an_address_that_cannot_be_read_is_not_quoted():
    error = refused("postgresql+psycopg://bob:sesame")
    assert error.because == "that is no address of a database"


def test_a_new_study_is_refused_and_one_that_goes_on_is_not_held_up(raw_spec, monkeypatch):
    spec = raw_spec(CLOSED)
    with pytest.raises(SpecError) as caught:
        places.make_places(spec)
    assert caught.value.exit_code == 2
    assert f"tracking.uri: the tracking store {CLOSED} cannot be reached" in str(caught.value)
    monkeypatch.setattr(places, "is_new", lambda spec: False)
    places.make_places(spec)


@pytest.fixture
def raw_spec(tmp_path):
    from whole_studies import make_spec

    from dpsweep.spec.study import SweepSpec

    return lambda uri: SweepSpec(**make_spec(tmp_path, "claimed", tracking={"uri": uri}))


@pytest.mark.slow
def test_a_study_that_goes_on_hears_why_its_events_wait(story, tmp_path):
    """MLflow would try for an hour, and nothing was told meanwhile."""
    journal, messages = tmp_path / "journal.jsonl", []
    story.whole()
    story.write(journal)
    spool = Spool(
        journal,
        lambda: MLflowTracker(CLOSED, "digits", tmp_path / "state.json"),
        on_message=messages.append,
        poll_s=0.05,
        address=CLOSED,
    )
    wait_for(messages)
    assert messages == [
        f"tracking store {CLOSED} cannot be reached (ConnectionError: connection refused); the "
        "study goes on, and its events are delivered when the store is back"
    ]
    assert spool.why == "ConnectionError: connection refused"
    spool.stop()


def test_the_last_failure_of_a_store_is_kept_in_brief_and_without_passwords(story, tmp_path):
    journal, messages = tmp_path / "journal.jsonl", []
    story.whole()
    story.write(journal)
    outages = [ConnectionError("http://me:sesame@host is away\nand more")]

    def away():
        if outages:
            raise outages.pop()
        return MemoryTracker()

    spool = Spool(journal, away, on_message=messages.append, first_retry_s=30)
    assert spool.why == ""
    assert not spool.flush(timeout_s=2)
    wait_for(messages)
    assert spool.why == "ConnectionError: http://me:***@host is away"
    assert spool.flush(timeout_s=20)
    assert spool.why == ""
    spool.stop()

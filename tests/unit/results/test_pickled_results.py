"""Results of a tracking store as they travel: pickled, copied, compared; no password goes along."""

import copy
import pickle

import pytest
from stored_studies import copy_studies, track

from dpsweep import load_sweep
from dpsweep.tracking import mlflow_reader
from dpsweep.tracking.mlflow_reader import MLflowReader

SECRET = "s3cret"
SERVER = f"http://bob:{SECRET}@127.0.0.1:9"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    copy_studies(folder, ["composed"])
    return track(folder, "composed")


@pytest.fixture
def asked(store, monkeypatch):
    """A store that answers at any address; the addresses that it was asked at."""
    addresses, open_client = [], mlflow_reader.open_client

    def client(uri):
        addresses.append(uri)
        return open_client(store)

    monkeypatch.setattr(mlflow_reader, "open_client", client)
    return addresses


def opened():
    return load_sweep("mlflow:composed/composed", tracking_uri=SERVER)


def test_a_trial_that_travels_has_its_curve_and_no_password(asked):
    best = opened().best()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.dumps(best, protocol)
        assert SECRET.encode() not in sent
        again = pickle.loads(sent)
        assert again == best
        assert type(again.curve) is list
        assert again.curve == list(best.curve) != []
    assert copy.deepcopy(best) == best
    assert type(copy.deepcopy(best).curve) is list
    assert asked == [SERVER]


def test_a_trial_that_is_read_twice_is_the_same(asked):
    one, other = opened(), opened()
    assert one.results == other.results
    curve = one.best().curve
    assert curve == list(curve)
    assert list(curve) == curve
    assert curve != list(curve)[:-1]
    assert curve != "no curve"


def test_a_study_that_travels_has_no_password(asked):
    result = opened()
    sent = pickle.dumps(result)
    assert SECRET.encode() not in sent
    again = pickle.loads(sent)
    assert asked == [SERVER, "http://127.0.0.1:9"]
    assert again.results == result.results
    assert again.task(result.best().trial_id).method == result.best().config["method"]
    assert copy.deepcopy(result).results == result.results
    assert len(asked) == 2  # a copy in this process asks by the same connection


@pytest.mark.parametrize(
    ("uri", "bare"),
    [
        (SERVER, "http://127.0.0.1:9"),
        ("https://token@host/base", "https://host/base"),
        ("https://ada:a@b@host/base", "https://host/base"),
        ("http://host:5000", "http://host:5000"),
        ("postgresql+psycopg://me:pass@db/studies", "postgresql+psycopg://me@db/studies"),
    ],
)
def test_a_reader_travels_without_what_its_address_lets_in(uri, bare, asked):
    again = pickle.loads(pickle.dumps(MLflowReader(uri)))
    assert asked == [uri, bare]
    assert again.shown_uri == bare

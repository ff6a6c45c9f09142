"""Addresses of tracking stores are shown without passwords, whatever letters these have."""

from __future__ import annotations

import pytest

from dpsweep.spec.tracking import masked
from dpsweep.tracking.mlflow_reader import MLflowReader
from dpsweep.tracking.state import TrackingState
from dpsweep.tracking.views import addresses


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ada:AdaX@tail88QQ@127.0.0.1:5732", "http://ada:***@127.0.0.1:5732"),
        ("http://ada:a@b@c@host/x", "http://ada:***@host/x"),
        ("http://ada:a'b,c@d@host", "http://ada:***@host"),
        ("http://ada:se/cr@et@host", "http://ada:***@host"),
        ("http://ada@uni.example:se@cr@host", "http://***@host"),
        ("http://to@ken@host:5000", "http://***@host:5000"),
        ("http://to@ken:@host:5000", "http://***@host:5000"),
        ("postgresql+psycopg://me:a@b@db/studies", "postgresql+psycopg://me:***@db/studies"),
        ("mysql://me:a@b/c?d@e@db/studies", "mysql://me:***@db/studies"),
        ("postgresql://me@site:a@b@db/studies", "postgresql://me@site:***@db/studies"),
        (
            "from 'http://me:a@b@h1', http://you:c@d@h2/x,http://they:e@f@h3 to x@y",
            "from 'http://me:***@h1', http://you:***@h2/x,http://they:***@h3 to x@y",
        ),
        (
            "mysql://me:a@b@h1/x,mysql://you:c@d@h2/x to x@y",
            "mysql://me:***@h1/x,mysql://you:***@h2/x to x@y",
        ),
    ],
)
def test_a_password_is_blotted_out_to_the_last_sign_before_its_host(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://host:5000",
        "http://host:5000/x@y?by=a@b",
        "http://[::1]:5000/x@y",
        "postgresql://me@db:5432/studies?by=a@b",
        "postgresql://me@site@db:5432/studies",
        "mssql://me@db/studies",
        "mlflow:team/exp/dg@0123 of http://host:5000, ask me@host",
        "sqlite:///a@b.db",
    ],
)
def test_what_has_no_secret_stays_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_no_surface_shows_the_end_of_a_password(monkeypatch) -> None:
    uri = "http://ada:AdaX@tail88QQ@127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert MLflowReader().shown_uri == "http://ada:***@127.0.0.1:9"
    state = TrackingState(parent_run_id="run", store="http://127.0.0.1:9#1")
    assert {page.partition("/#")[0] for page in addresses(uri, state).values()} == {
        "http://127.0.0.1:9"
    }

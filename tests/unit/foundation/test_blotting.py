"""Secrets of the environment stand in nothing that a library says."""

import pytest

from dpsweep.foundation import bucket_path
from dpsweep.foundation.blotting import SECRETS, blotted
from dpsweep.foundation.servers import brief, cause_of

TOKEN = "dapi0123456789abcdef"


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_headers_are_blotted_out_whatever_the_environment_says(scheme) -> None:
    for text in (f"{scheme} {TOKEN}\n", f"{scheme} {TOKEN}\\n'", f"{scheme} dapi0123"):
        assert "dapi" not in blotted(f"in header value: '{text}")


def test_a_header_is_told_from_prose() -> None:
    assert blotted("bearer dapi0123 and basic dXNlcjpwYXNz") == "bearer *** and basic ***"
    for prose in ("Basic authentication failed", "a bearer token", 'Basic realm="mlflow"'):
        assert blotted(prose) == prose


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("end", ["", "\n", " ", "\\", "'\"", "\nsecond line"])
def test_values_are_blotted_out_as_they_are_and_as_python_quotes_them(
    monkeypatch, name, end
) -> None:
    monkeypatch.setenv(name, TOKEN + end)
    for text in (f"<{TOKEN}{end}>", repr(TOKEN + end), repr((TOKEN + end).encode())):
        assert "dapi" not in blotted(f"Invalid header value {text}")
    if not end.strip() or end.startswith("\n"):
        assert "dapi" not in blotted(f"the first line alone: {TOKEN}")


def test_values_that_are_no_secret_by_their_length_leave_words_alone(monkeypatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "a\n")
    assert blotted("a database") == "a database"
    monkeypatch.setenv("PGPASSWORD", "")
    assert blotted("a database") == "a database"


@pytest.mark.parametrize("said", [cause_of, brief])
def test_a_reason_that_is_cut_has_no_half_of_a_secret(monkeypatch, said) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    for length in range(170, 201):
        assert "dapi" not in said(OSError("x" * length + TOKEN))


def test_a_secret_that_begins_another_one_leaves_no_tail(monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    monkeypatch.setenv("PGPASSWORD", "hunter2-production")
    assert blotted("password=hunter2-production") == "password=***"


def test_what_an_object_store_says_is_blotted(monkeypatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sekret-0123")
    said = bucket_path._refusal("cannot write s3://b/k", "header 'sekret-0123' is bad").because
    assert said == "header '***' is bad"

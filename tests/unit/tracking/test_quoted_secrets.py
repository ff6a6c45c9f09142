"""What libraries say of a store that fails is shown without the secrets that they were given."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException
from whole_studies import make_spec

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.places import place_problems
from dpsweep.spec.study import SweepSpec
from dpsweep.tracking import refuse_uri
from dpsweep.tracking.mlflow import MLflowTracker
from dpsweep.tracking.mlflow_models import LoggedModels
from dpsweep.tracking.mlflow_reader import MLflowReader
from dpsweep.tracking.registry.versions import ModelRegistry
from dpsweep.tracking.spool import Spool

SECRET = "dapi0123456789abcdef"
URI = "http://127.0.0.1:9"
QUOTED = f"x{'x' * 150} header value: 'Bearer {SECRET}\\n' or b'{SECRET}'"


class Quoting:
    """A client whose every request fails with words that quote the token."""

    def __getattr__(self, name: str):
        def fail(*_, **__):
            raise MlflowException(QUOTED)

        return fail


@pytest.fixture
def secret(monkeypatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)


@pytest.mark.usefixtures("secret")
def test_the_spool_tells_no_secret(story, tmp_path: Path) -> None:
    messages: list[str] = []

    def factory():
        raise MlflowException(QUOTED)

    story.whole()
    story.write(tmp_path / "journal.jsonl")
    times = {"poll_s": 0.01, "first_retry_s": 0.01, "max_retry_s": 0.05}
    with Spool(tmp_path / "journal.jsonl", factory, on_message=messages.append, **times) as spool:
        while not (messages and spool.why):
            time.sleep(0.01)
        assert "header value" in messages[0]
        assert "dapi" not in "".join(messages) + spool.why


@pytest.mark.usefixtures("secret")
def test_the_reader_and_the_registry_tell_no_secret(monkeypatch) -> None:
    for module in ("mlflow_reader", "registry.versions"):
        monkeypatch.setattr(f"dpsweep.tracking.{module}.open_client", lambda _: Quoting())
    for ask in (lambda: MLflowReader(URI).studies(), lambda: ModelRegistry(URI, "run")):
        with pytest.raises(BadInputError) as caught:
            ask()
        assert "header value" in str(caught.value)
        assert "dapi" not in str(caught.value)


@pytest.mark.usefixtures("secret")
def test_versions_that_take_no_label_tell_no_secret(label) -> None:
    (problem,) = LoggedModels(Quoting(), URI, "1")._tag_versions("run", {}, "", is_for_all=True)
    assert "header value" in problem
    assert "dapi" not in problem


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (f"{SECRET}\n", "ends with a newline"),
        (f"{SECRET}\r\n", "ends with a newline"),
        (f"{SECRET}\n\n", "ends with a newline"),
        (f"\n{SECRET}", "begins with a newline"),
        ("dapi\ndapi", "has a newline in it"),
        (f"{SECRET}\x00"[:-1] + "\x7f", "has a control character in it"),
        (f"{SECRET}\t", "ends with a blank"),
        (f" {SECRET}", "begins with a blank"),
        (f"{SECRET}\u2026", "has a letter that no request can carry"),
    ],
)
def test_a_token_that_no_request_can_carry_is_refused_before_anything_is_asked(
    monkeypatch, tmp_path: Path, value: str, problem: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", value)
    choice = SimpleNamespace(kind="mlflow", uri=URI, experiment=None)
    for ask in (
        lambda: refuse_uri(choice),
        lambda: MLflowReader(URI),
        lambda: ModelRegistry(URI, "run"),
        lambda: MLflowTracker(URI, "digits", tmp_path / "tracking.json"),
    ):
        with pytest.raises(BadInputError) as caught:
            ask()
        assert caught.value.message == f"MLFLOW_TRACKING_TOKEN {problem}"
        assert "printf %s" in caught.value.fix
        assert "dapi" not in str(caught.value) + caught.value.fix
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"])
def test_names_and_passwords_end_with_no_newline_and_may_have_any_letter(monkeypatch, name) -> None:
    choice = SimpleNamespace(kind="mlflow", uri=URI, experiment=None)
    for value in (" two words ", "p\u00e4ss", ""):
        monkeypatch.setenv(name, value)
        refuse_uri(choice)
    monkeypatch.setenv(name, "geheim\n")
    with pytest.raises(BadInputError, match=f"^{name} ends with a newline") as caught:
        refuse_uri(choice)
    assert "geheim" not in str(caught.value)


def test_a_token_that_is_not_sent_is_not_looked_at(monkeypatch) -> None:
    choice = SimpleNamespace(kind="mlflow", uri=URI, experiment=None)
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", SECRET + "\n" * (name == "TOKEN"))
    refuse_uri(choice)  # name and password are sent
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    with pytest.raises(BadInputError, match=r"^MLFLOW_TRACKING_TOKEN"):
        refuse_uri(choice)


def test_credentials_of_a_server_are_looked_at_for_a_server_alone(monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", f"{SECRET}\n")
    for uri in ("sqlite:///mlflow.db", "postgresql://me@db/mlflow", None):
        refuse_uri(SimpleNamespace(kind="mlflow", uri=uri, experiment=None))


def test_validate_refuses_them_with_the_spec(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", f"{SECRET}\n")
    spec = SweepSpec(**make_spec(tmp_path, "digits", tracking={"uri": URI}))
    ((key, problem, fix),) = place_problems(spec)
    assert key == "tracking.uri"
    assert problem == "MLFLOW_TRACKING_TOKEN ends with a newline"
    assert "printf %s" in fix

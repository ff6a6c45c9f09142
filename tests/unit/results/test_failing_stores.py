"""A tracking store that fails for a file is told; a configuration is whole, or said not to be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from requests import HTTPError
from stored_studies import copy_studies, track
from whole_studies import cli_here

from dpsweep import load_sweep
from dpsweep.foundation.errors import BadInputError, StudyError
from dpsweep.results.tables.rows import trial_rows
from dpsweep.tracking.mlflow_reader import MLflowReader
from dpsweep.tracking.schema import EPSILON, OBJECTIVE

NAME = "mlflow:composed/composed"
AWAY = "504 Server Error: Gateway Timeout for url: http://me:sec@ret@host/trial.json"


@pytest.fixture
def uri(tmp_path):
    copy_studies(tmp_path, ["composed"])
    return track(tmp_path, "composed")


@pytest.fixture
def fails(monkeypatch):
    """Make the store of artifacts fail as it hands out a file, or lists what there is."""
    stored = LocalArtifactRepository._download_file

    def make(name: str, error: Exception, listing: Exception | None = None) -> None:
        def download(self, remote_file_path, local_path):
            if remote_file_path == name:
                raise error
            return stored(self, remote_file_path, local_path)

        def refuse(self, path=None):
            if path is None:
                raise listing
            return []

        monkeypatch.setattr(LocalArtifactRepository, "_download_file", download)
        if listing is not None:
            monkeypatch.setattr(LocalArtifactRepository, "list_artifacts", refuse)

    return make


@pytest.mark.parametrize("name", ["trial.json", "sweep.yaml"])
def test_an_outage_for_a_file_is_the_stores_and_no_answer_is_given(uri, fails, name) -> None:
    fails(name, HTTPError(AWAY))
    with pytest.raises(BadInputError) as caught:
        load_sweep(NAME, tracking_uri=uri)
    assert not isinstance(caught.value, StudyError)
    assert caught.value.message.startswith(f"{name} of run ")
    assert caught.value.message.endswith(f"in tracking store {uri} cannot be read")
    assert caught.value.because == AWAY.replace("sec@ret", "***")
    assert caught.value.fix.startswith("ask again")
    done = cli_here("best", NAME, "--tracking-uri", uri, "-f", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "504 Server Error" in done.stderr


@pytest.mark.parametrize(
    ("error", "listing"),
    [
        (HTTPError("404 Client Error: Not Found for url: http://host/x"), None),
        (MlflowException("gone", RESOURCE_DOES_NOT_EXIST), None),  # it is there, and goes just then
        (HTTPError(AWAY), HTTPError("404 Client Error: Not Found for url: http://host/")),
    ],
)
def test_a_file_that_is_not_there_is_none(uri, fails, error, listing) -> None:
    fails("trial.json", error, listing)
    reader = MLflowReader(uri)
    trials = reader.trials(reader.studies()[0])
    assert reader.text(trials[0], "trial.json") is None


def test_a_bucket_that_fails_for_a_missing_file_has_none(uri, fails) -> None:
    """MLflow's server answers 500 then, and lists what there is."""
    fails("none.json", HTTPError("500 Server Error: Internal Server Error"))
    reader = MLflowReader(uri)
    (study,) = reader.studies()
    assert reader.text(study, "none.json") is None
    words = f"Max retries exceeded: {'x' * 300} (Caused by ResponseError('too many 504 errors'))"
    fails("none.json", HTTPError(AWAY), MlflowException(words))
    with pytest.raises(BadInputError) as caught:
        reader.text(study, "none.json")
    assert caught.value.because == "too many 504 errors"


def test_an_ended_trial_without_its_file_is_named_beside_its_configuration(uri, tmp_path) -> None:
    assert load_sweep(NAME, tracking_uri=uri).incomplete == []
    reader = MLflowReader(uri)
    for number, run in reader.trials(reader.studies()[0]).items():
        if number in (1, 4):
            (path,) = tmp_path.rglob(f"mlartifacts/**/{run.run_id}/artifacts/trial.json")
            path.unlink()
    result = load_sweep(NAME, tracking_uri=uri)
    assert result.incomplete == [1, 4]
    words = "trial.json of trial 1, 4 cannot be read there, so that the configuration may be"
    assert words in result.source
    shown = cli_here("show", NAME, "1", "--tracking-uri", uri, "-f", "json")
    assert json.loads(shown.stdout)["config"]
    assert "note: trial.json of trial 1 cannot be read in the tracking store" in shown.stderr
    other = cli_here("show", NAME, "0", "--tracking-uri", uri, "-f", "json")
    assert "trial.json" not in other.stderr
    assert words in cli_here("export", NAME, "--tracking-uri", uri).stderr
    assert load_sweep("composed", root=tmp_path / "studies").incomplete == ()


def test_a_trial_that_goes_on_has_no_such_file_yet(tmp_path) -> None:
    copy_studies(tmp_path, ["composed"])
    result = load_sweep(NAME, tracking_uri=track(tmp_path, "composed", until="trial_report"))
    assert result.view.trials
    assert result.incomplete == []


def test_an_ended_trial_is_read_without_its_histories(uri, monkeypatch) -> None:
    """Two requests a trial less; the last values and their steps are with the runs."""
    before = load_sweep(NAME, tracking_uri=uri)
    rows = trial_rows(before)
    reader = MLflowReader(uri)
    study = reader.studies()[0]
    for run in reader.trials(study).values():
        for metric in (OBJECTIVE, EPSILON):
            points = reader.history(run, metric)
            assert reader.last(run, metric) == (points[-1] if points else None)
            assert reader.last(replace(run, last={}), metric) == reader.last(run, metric)

    def refuse(*_):
        raise AssertionError("nobody needs it")

    monkeypatch.setattr(MlflowClient, "get_metric_history", refuse)
    assert trial_rows(load_sweep(NAME, tracking_uri=uri)) == rows


def test_a_store_whose_last_values_are_by_time_is_asked_for_the_steps(uri) -> None:
    reader = MLflowReader(uri)
    reader._uri = "databricks"
    (study,) = reader.studies()
    runs = reader.trials(study)
    assert runs
    assert not any(run.last for run in runs.values())
    assert reader.last(runs[0], EPSILON) == reader.history(runs[0], EPSILON)[-1]

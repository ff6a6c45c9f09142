"""A whole study whose files are in a bucket, its ledgers in PostgreSQL; trials run here."""

import copy
import dataclasses
import hashlib
import json
import pickle
import socket
import time
import uuid
from pathlib import Path

import pytest
import yaml
from studies_here import run_here

from dpsweep.foundation.bucket_path import BucketPath, store_of
from dpsweep.foundation.errors import LedgerError, SpecError, StorageError, StudyError
from dpsweep.foundation.file_paths import cache_of, local_copy
from dpsweep.ledgers.admission import check_admitted
from dpsweep.planning.places import make_places
from dpsweep.results.advice import command
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.overview import overview
from dpsweep.running.traces import closed, remove_traces
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.launched import is_new
from dpsweep.study.study import Study
from tests.helpers import buckets
from tests.helpers.postgres import sessions_of_its_own
from tests.helpers.whole_studies import cli_here


@pytest.fixture(scope="module")
def bucket():
    with buckets.running() as bucket:
        yield bucket


def spec_of(address, root):
    return {
        "name": "digits",
        "data": {
            "dataset": "digits",
            "validation": {"fraction": 0.2, "visibility": "public"},
            "test": {"fraction": 0.2, "visibility": "public"},
        },
        "privacy": {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {
            "num_trials": 2,
            "space": {
                "method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 1]}, "train.epochs": 2,
            },
        },
        "report": {"points": 2},
        "storage": {"path": f"s3://lab/{uuid.uuid4().hex}", "database": address},
        "tracking": {"uri": f"sqlite:///{root}/mlflow.db"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(bucket, database_server, tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    raw = spec_of(database_server.make(uuid.uuid4().hex), root)
    with pytest.MonkeyPatch.context() as patch, sessions_of_its_own():
        patch.chdir(root)
        run_here(patch.setattr, raw)

    return raw


@pytest.fixture
def raw(finished, database_sessions):
    return copy.deepcopy(finished)


def folder_of(raw):
    return BucketPath("s3", raw["storage"]["path"].removeprefix("s3://")) / raw["name"]


def test_every_file_of_a_study_is_in_its_bucket(bucket, raw):
    prefix = folder_of(raw).key.removeprefix("lab/")
    names = {name.removeprefix(f"{prefix}/") for name in bucket.names(prefix)}
    assert {"spec.yaml", "data.sha256", "report.html", "trials/0000/trial.json"} <= names
    for trial in ("0000", "0001"):
        assert {f"trials/{trial}/best.json", f"trials/{trial}/last.json"} <= names
    assert not [name for name in names if name.endswith((".jsonl", ".db", ".lock"))]


def test_traces_of_tune_in_a_bucket_are_removed(bucket, raw):
    ray, said = folder_of(raw) / "ray", []
    remove_traces(ray, said.append)  # there are none
    (ray / "tune" / "experiment_state-1.json").write_bytes(b"{}")
    assert closed(ray) == ray
    prefix = folder_of(raw).key.removeprefix("lab/")
    before = bucket.names(prefix)
    remove_traces(ray, said.append)
    assert said == []
    left = set(bucket.names(prefix))
    assert set(before) - left == {f"{prefix}/ray/tune/experiment_state-1.json"}
    assert left - set(before) <= {f"{prefix}/"}  # the mark of a folder, which Tune makes as well


def test_a_study_in_a_bucket_is_read_by_its_address(raw):
    result = load_sweep("digits", root=raw["storage"]["path"])
    assert len(result.results) == 2
    best = result.best()
    assert best.model_uri.startswith(("models:/", "s3://"))
    (row,) = overview(folder_of(raw).parent)
    assert (row["study"], row["state"], row["trials"]) == ("digits", "finished", 2)
    assert row["where"] == str(folder_of(raw))
    with pytest.raises(StudyError, match="no study 'digist' in s3://lab/") as caught:
        load_sweep("digist", root=raw["storage"]["path"])
    assert "digits" in str(caught.value.fix)


@pytest.mark.parametrize(
    "verb",
    [
        ("status", "digits"), ("report", "digits"), ("best", "digits", "--max-epsilon", "3"),
        ("show", "digits", "0"), ("doctor",),
    ],
)  # fmt: skip
def test_verbs_take_the_address_of_a_bucket(raw, verb):
    done = cli_here(*verb, "--root", raw["storage"]["path"])
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr


def test_its_spec_is_read_from_there_as_status_says(raw):
    """``status`` prints the command that continues a study, with the address of its spec."""
    spec = f"{folder_of(raw)}/spec.yaml"
    assert spec in command(load_sweep("digits", root=raw["storage"]["path"]))
    done = cli_here("validate", spec, "--set", "search.num_trials=3")
    assert (done.returncode, "at most 3 trials" in done.stderr) == (0, True), done.stderr
    done = cli_here("validate", spec.replace("spec.yaml", "none.yaml"))
    assert (done.returncode, "none.yaml: no such file" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_study_in_a_bucket_goes_on_from_its_checkpoints(
    monkeypatch, database_server, raw, tmp_path
):
    raw = spec_of(database_server.make(uuid.uuid4().hex), tmp_path)
    monkeypatch.chdir(tmp_path)
    first = run_here(monkeypatch.setattr, raw)
    before = {trial.trial_id: trial.epsilon for trial in first.results}
    raw["search"]["num_trials"] = 3
    again = run_here(monkeypatch.setattr, raw)
    assert {trial.trial_id: trial.epsilon for trial in again.results}.items() >= before.items()
    assert len(again.results) == 3
    assert not (tmp_path / "s3:").exists()


def test_a_damaged_spec_in_a_bucket_is_named(monkeypatch, bucket, database_server, raw, tmp_path):
    path = folder_of(raw) / "spec.yaml"
    content = path.read_bytes()
    try:
        path.write_bytes(b"{")
        with pytest.raises(StudyError, match=r"s3://lab/.*/digits/spec.yaml is damaged"):
            load_sweep("digits", root=raw["storage"]["path"])
        without = {**yaml.safe_load(content), "storage": {"path": raw["storage"]["path"]}}
        path.write_bytes(yaml.safe_dump(without).encode())
        with pytest.raises(StudyError, match="is damaged"):
            load_sweep("digits", root=raw["storage"]["path"])
    finally:
        path.write_bytes(content)


def test_the_tracking_store_gets_copies(raw, tmp_path):
    import mlflow

    client = mlflow.MlflowClient(raw["tracking"]["uri"])
    (experiment,) = (e for e in client.search_experiments() if e.name == "digits")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if "dpsweep.trial" not in run.data.tags)
    names = {entry.path for entry in client.list_artifacts(parent.info.run_id)}
    assert {"report.html", "pictures", "study.jsonl"} <= names
    pictures = {entry.path for entry in client.list_artifacts(parent.info.run_id, "pictures")}
    assert any(name.endswith(".png") for name in pictures)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ({"path": "s3://lab/x"}, "storage.database: is missing"),
        ({"path": "s3://lab/x?secret=1", "database": "postgresql://a@h/d"}, "storage.path: a bucket"),
        ({"path": "ftp://lab/x", "database": "postgresql://a@h/d"}, "storage.path: not an address"),
        ({"path": "s", "features": "s3://lab/x"}, "storage.features: is the folder on each node"),
    ],
)  # fmt: skip
def test_a_bucket_that_cannot_be_used_is_a_mistake_of_the_spec(storage, message, tmp_path):
    raw = {**spec_of("postgresql://a@h/d", tmp_path), "storage": storage}
    with pytest.raises(SpecError) as caught:
        SweepSpec.from_yaml(json.dumps(raw))
    assert message in str(caught.value)


def test_a_bucket_that_is_not_there_is_refused_before_anything_is_written(raw):
    raw["storage"]["path"] = "s3://nobody/x"
    with pytest.raises(SpecError, match=r"storage.path: cannot write s3://nobody/.*no such bucket"):
        make_places(SweepSpec(**raw))


def test_files_of_a_study_in_a_bucket_have_their_ledgers_in_the_database(raw):
    files = StudyFiles.at(folder_of(raw))
    assert str(files.journal).startswith("postgresql://")
    assert files.trial(0).as_uri().startswith("s3://")
    assert not Path("s3:").exists()


def test_a_plan_is_made_where_the_bucket_is_out_of_reach(monkeypatch, tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    buckets.forget()
    spec = SweepSpec(**spec_of("postgresql://a@127.0.0.1:1/d", tmp_path))
    asked = time.monotonic()
    assert is_new(spec)
    assert time.monotonic() - asked < 15
    buckets.forget()


def test_a_forged_task_is_refused_before_its_first_step(raw):
    files = StudyFiles.at(folder_of(raw))
    task = files.task(0)
    with pytest.raises(LedgerError, match="trial 0 has been settled"):  # and is what was admitted
        check_admitted(files.ledger, 0, task.full_plan, task.digest)
    quieter = dataclasses.replace(task, plan=task.plan.labelled("public"))
    for forged in (
        quieter,
        dataclasses.replace(task, hparams={**task.hparams, "clip.max_norm": 1e9}),
        dataclasses.replace(task, records="public"),
    ):
        with pytest.raises(LedgerError, match="trial 0 is not the one that was admitted"):
            check_admitted(files.ledger, 0, forged.full_plan, forged.digest)
    with pytest.raises(LedgerError, match="trial 7 is not the one that was admitted"):
        check_admitted(files.ledger, 7, task.full_plan, task.digest)


def test_a_spec_that_was_lost_is_not_written_for_another_database(
    monkeypatch, bucket, database_server, raw
):
    path = folder_of(raw) / "spec.yaml"
    content = path.read_bytes()
    path.unlink()
    try:
        other = copy.deepcopy(raw)
        other["storage"]["database"] = database_server.make(uuid.uuid4().hex)
        with pytest.raises(StudyError, match=r"has trials, .* and no privacy ledger"):
            Study(SweepSpec(**other))
        assert not path.exists()
    finally:
        path.write_bytes(content)


def test_what_others_may_put_beside_a_checkpoint_is_not_unpickled(bucket, tmp_path):
    from ray.tune import Checkpoint

    from dpsweep.trainables.execution.actor import DPTrainable

    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harmed",))

    folder = BucketPath("s3", "lab/ray/checkpoint_000000")
    (folder / "_dict_checkpoint.pkl").write_bytes(pickle.dumps(Harm()))
    trainable = DPTrainable.__new__(DPTrainable)
    DPTrainable.restore(trainable, Checkpoint(folder.key, store_of(folder)))
    assert trainable._restored
    assert not (tmp_path / "harmed").exists()


def test_weights_are_what_their_name_says(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "cache"))
    name = hashlib.sha256(b"weights").hexdigest()
    path = BucketPath("s3", "lab/x/.pretrained") / f"{name}.safetensors"
    with pytest.raises(StorageError, match="is missing, or is not what its name says"):
        local_copy(path)
    path.write_bytes(b"planted")
    with pytest.raises(StorageError, match="not what its name says"):
        local_copy(path)
    path.write_bytes(b"weights")
    copied = local_copy(path)
    copied.write_bytes(b"")  # a copy that was cut off
    path.write_bytes(b"planted")
    with pytest.raises(StorageError):
        local_copy(path)
    path.write_bytes(b"weights")
    assert local_copy(path).read_bytes() == b"weights"
    assert copied.parent.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_others_may_enter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path))
    folder = BucketPath("s3", "lab/x/.features")
    cache_of(folder).chmod(0o755)
    with pytest.raises(StorageError, match="copies cannot be kept"):
        cache_of(folder)

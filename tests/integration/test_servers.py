"""Two studies at once on real servers: PostgreSQL for all that counts, an S3 store for files."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import mlflow
import optuna
import pytest
import yaml
from mlflow_servers import Server
from whole_studies import cli, make_spec

from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.dataset import read_dataset_ledger
from dpsweep.ledgers.trial import steps_charged, trial_spent
from dpsweep.results.study import load_sweep
from dpsweep.search.optuna_file import place_of
from dpsweep.study.files import StudyFiles
from tests.helpers import postgres
from tests.helpers.postgres import PASSWORD, sessions_of_its_own

TRIALS = 20
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def database():
    with postgres.running() as server, sessions_of_its_own():
        yield server


@pytest.fixture(scope="module")
def bucket():
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {
        "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        s3 = boto3.client("s3", endpoint_url=names["MLFLOW_S3_ENDPOINT_URL"])
        s3.create_bucket(
            Bucket="artifacts",
            CreateBucketConfiguration={"LocationConstraint": names["AWS_DEFAULT_REGION"]},
        )
        yield s3
    server.stop()


@pytest.fixture(scope="module")
def tracking(database, bucket, tmp_path_factory):
    """An MLflow server as ``cluster/compose.yaml`` starts it."""
    store = database.make("mlflow").replace("postgresql://", "postgresql+psycopg://")
    server = Server(tmp_path_factory.mktemp("mlflow"), store=store, files="s3://artifacts")
    server.start()
    yield server
    server.kill()


def spec_file(root, name, address, uri):
    raw = make_spec(root, name)
    raw["privacy"] = {
        "delta": 1e-5, "trial_epsilon": 0.5, "accounting": "composed", "study_epsilon": 3.0,
        "dataset_ledger": f"{address}#digits", "dataset_epsilon": 6.0, "dataset_delta": 1e-4,
    }  # fmt: skip
    raw["search"] |= {"num_trials": TRIALS}
    raw["search"]["space"] |= {"train.epochs": 1, "optim.lr": {"loguniform": [0.1, 1]}}
    raw["report"] = {"points": 1}
    raw["resources"], raw["cluster"] = {"cpu": 0.5}, {"target": "local", "num_cpus": 1}
    raw["storage"]["database"], raw["tracking"]["uri"] = address, uri
    file = root / f"{name}.yaml"
    file.write_text(yaml.safe_dump(raw))
    return file


@contextlib.contextmanager
def running(files, log):
    """Run specs at once, in folders of their own; what they said is shown if something fails."""
    with log.open("wb") as out:
        command = [sys.executable, "-m", "dpsweep", "run"]
        runs = [
            subprocess.Popen([*command, file], cwd=log.parent, stdout=out, stderr=out)
            for file in files
        ]
        try:
            yield runs
        except BaseException:
            print(log.read_text()[-4000:])
            raise
        finally:
            for run in runs:
                run.kill()
                run.wait()


def test_two_studies_at_once_share_a_budget_and_a_crash(tmp_path, database, bucket, tracking):
    address = database.make("sweeps")
    names = ("first", "second")
    files = [spec_file(tmp_path, name, address, tracking.uri) for name in names]
    charged = [StudyFiles(tmp_path / "studies", name, address).ledger for name in names]
    with running(files, tmp_path / "log") as runs:
        _until(lambda: all(len(read_log(ledger / "study.jsonl")) > 6 for ledger in charged))
        second = cli("run", files[0], cwd=tmp_path)
        assert (second.returncode, "already running" in second.stderr) == (2, True), second.stderr
        database.kill()
        time.sleep(2)
        database.start()
        assert [run.wait(timeout=400) for run in runs] == [0, 0]

    client = mlflow.MlflowClient(tracking.uri)
    for name in names:
        result = load_sweep(name, root=tmp_path / "studies")
        assert result.state == "finished"
        numbers = [trial.trial_id for trial in result.results]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == TRIALS
        statement = result.study_statement()
        assert (statement.epsilon, statement.accounting) == (pytest.approx(3.0), "composed")
        for trial in result.results:
            spent = trial_spent(result.files.ledger, trial.trial_id)
            assert len(spent) >= steps_charged(result.files.ledger, trial.trial_id) >= trial.step
        (experiment,) = client.search_experiments(filter_string=f"name = '{name}'")
        found = client.search_runs([experiment.experiment_id], max_results=100)
        children = [run for run in found if "mlflow.parentRunId" in run.data.tags]
        assert len(found) == TRIALS + 1
        assert sorted(int(run.data.tags["dpsweep.trial"]) for run in children) == numbers
        assert not any(run.info.status == "RUNNING" for run in found)
        study = optuna.load_study(study_name=name, storage=place_of(result.files.optuna).storage())
        assert [trial.number for trial in study.trials] == numbers
    account = read_dataset_ledger(f"{address}#digits")
    assert sorted(study.name for study in account.studies) == ["first", "second"]
    assert account.epsilon == 6.0
    third = cli("run", spec_file(tmp_path, "third", address, tracking.uri), cwd=tmp_path)
    assert third.returncode == 2
    assert "does not fit into the dataset's budget" in third.stderr
    kept = bucket.list_objects_v2(Bucket="artifacts", MaxKeys=1000)
    keys = [entry["Key"] for entry in kept["Contents"]]
    assert sum(key.endswith("study.jsonl") for key in keys) == 2
    assert sum("trial-00" in key for key in keys) == 2 * TRIALS


@pytest.mark.parametrize(
    ("password", "server", "says"),
    [("wrong", None, "password authentication failed"), (PASSWORD, "dead", "Connection refused")],
)
def test_a_database_that_refuses_or_is_dead_is_told_at_once(
    tmp_path, database, password, server, says
):
    address = database.make(f"refused-{says[:4]}".lower())
    if server == "dead":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"postgresql://ada@127.0.0.1:{free.getsockname()[1]}/sweeps"
    file = spec_file(tmp_path, "refused", address, None)
    start = time.monotonic()
    environment = {**os.environ, "PGPASSWORD": password}
    done = cli("run", file, cwd=tmp_path, env=environment)
    assert time.monotonic() - start < 15
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert password not in done.stderr
    assert not (tmp_path / "studies" / "refused").exists()


def _until(condition, timeout_s=400):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)

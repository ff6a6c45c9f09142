"""Studies on a real Ray whose nodes share nothing but a bucket and a database."""

import uuid

import pytest
import yaml
from whole_studies import cli, kill_driver, make_spec, openings, start, wait_for_steps

from dpsweep.foundation.bucket_path import BucketPath
from dpsweep.ledgers.trial import steps_charged
from dpsweep.results.study import load_sweep
from dpsweep.study.files import StudyFiles
from tests.helpers import buckets
from tests.helpers.postgres import PASSWORD, sessions_of_its_own

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def bucket():
    with buckets.running() as bucket, sessions_of_its_own():
        yield bucket


def spec_file(root, address, name, **changes):
    raw = make_spec(root, name, **changes)
    raw["storage"] = {"path": "s3://lab/studies", "database": address}
    raw["cluster"] = {"num_cpus": 2}
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_a_killed_driver_is_continued_where_no_disk_is_left(
    bucket, database_server, tmp_path, monkeypatch
):
    """Another machine goes on: it has the spec, and neither caches nor a folder of studies."""
    address = database_server.make(uuid.uuid4().hex)
    search = {
        "num_trials": 2,
        "sampler": "random",
        "space": {
            "method": "scatternet", "features.name": "scatternet", "train.epochs": 30,
            "optim.lr": {"loguniform": [0.1, 1]},
        },
    }  # fmt: skip
    path = spec_file(tmp_path, address, "killed", search=search, report={"points": 6})
    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "first"))
    process = start(path)
    files = StudyFiles(BucketPath("s3", "lab/studies"), "killed", address)
    wait_for_steps(files.journal, 40, process)
    kill_driver(process, files.ledger)
    charged = steps_charged(files.ledger, 0)
    features = [name for name in bucket.names("studies/.features/") if name.endswith(".json")]
    assert len(features) == len(list((tmp_path / "first").glob("*/*.json"))) > 0

    monkeypatch.setenv("DPSWEEP_CACHE", str(tmp_path / "second"))
    done = cli("run", path)
    assert done.returncode == 0, done.stderr
    assert "trial 0: continuing at step " in done.stderr
    assert "records computed" not in done.stderr
    result = load_sweep("killed", root="s3://lab/studies")
    assert [trial.state.value for trial in result.results] == ["finished"] * 2
    for trial in result.results:
        assert steps_charged(files.ledger, trial.trial_id) >= trial.num_steps
    assert steps_charged(files.ledger, 0) >= charged
    assert [len(pids) for pids in openings(files.ledger).values()] == [2, 1]
    copies = {item.name for item in (tmp_path / "second").glob("*/*.npy")}
    assert copies == {name.rpartition("/")[2].replace(".json", ".npy") for name in features}
    assert not list(tmp_path.glob("studies*"))
    for secret in (buckets.SECRET, PASSWORD):
        assert secret not in done.stderr + done.stdout
        assert secret.encode() not in bucket.content()

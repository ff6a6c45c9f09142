"""Cluster targets on real Ray: an existing cluster with the shipped wheel, and refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpsweep.cluster.early import refuse_impossible
from dpsweep.cluster.existing import refuse_unshared, sharing_problem
from dpsweep.cluster.package import write_package
from dpsweep.foundation.errors import ResourceError
from dpsweep.foundation.locks import FileLock
from dpsweep.spec.cluster import ResourcesSpec

SPEC = {
    "name": "remote",
    "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
    "privacy": {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"},
    "search": {
        "sampler": "random",
        "num_trials": 2,
        "space": {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 4]}, "train.epochs": 3},
    },
    "resources": {"cpu": 0.5},
    "tracking": {"uri": None},
}


def run(spec, directory, **environment):
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return subprocess.run(
        [sys.executable, "-m", "dpsweep", "run", str(path), "-f", "json"],
        capture_output=True, text=True, timeout=240, cwd=directory,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.ray
@pytest.mark.slow
def test_an_existing_cluster_runs_the_shipped_package(ray_cluster, tmp_path):
    """The session's Ray is the existing cluster; the driver is another process that joins it."""
    address = ray_cluster.get_runtime_context().gcs_address
    storage = str(tmp_path / "studies")
    spec = {**SPEC, "cluster": {"target": "ray", "address": address}, "storage": {"path": storage}}
    done = run(spec, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["state"] for row in json.loads(done.stdout)] == ["finished"] * 2
    assert f"joined the Ray cluster at {address}: 1 node, 2 CPUs and " in " ".join(
        done.stderr.split()
    )
    assert "1 node of the cluster: dpsweep 0.1.0" in " ".join(done.stderr.split())
    assert ray_cluster.cluster_resources()["CPU"] == 2  # it is still up

    too_large = {**spec, "name": "large", "resources": {"cpu": 64}}
    refused = run(too_large, tmp_path)
    assert refused.returncode == 2
    assert "largest node has 2 CPUs and 0 GPUs" in refused.stderr
    assert "waiting up to" not in refused.stderr

    waited = run({**too_large, "cluster": {**spec["cluster"], "wait_minutes": 0.05}}, tmp_path)
    assert waited.returncode == 2
    assert "waiting up to 0.05 minutes for an autoscaler" in waited.stderr
    assert "largest node has 2 CPUs and 0 GPUs" in waited.stderr


@pytest.mark.ray
@pytest.mark.slow
def test_a_package_that_the_nodes_do_not_have_is_refused(ray_cluster, tmp_path):
    package = tmp_path / "package"
    info = package / "quartzes-1.2.dist-info"
    info.mkdir(parents=True)
    (package / "quartzes.py").write_text("class Quartz:\n    pass\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quartzes\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[dpsweep.events]\nquartz = quartzes:Quartz\n")
    address = ray_cluster.get_runtime_context().gcs_address
    storage = str(tmp_path / "studies")
    spec = {**SPEC, "cluster": {"target": "ray", "address": address}, "storage": {"path": storage}}
    done = run(spec, tmp_path, PYTHONPATH=str(package))
    assert done.returncode == 2, done.stderr
    assert "has none for the package with 'quartz', and this process quartzes 1.2" in done.stderr
    ledgers = list((tmp_path / "studies" / "remote" / "ledger").glob("trial*"))
    assert ledgers == []


@pytest.mark.slow
def test_no_cluster_at_the_address(tmp_path):
    spec = {**SPEC, "cluster": {"target": "ray", "address": "127.0.0.1:1"}}
    done = run(spec, tmp_path)
    assert done.returncode == 2
    assert "no Ray cluster answers at cluster.address='127.0.0.1:1'" in done.stderr


def test_what_is_shipped_holds_every_room(tmp_path):
    package = write_package(tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in package.rglob("*.py")}
    root = Path(__file__).parents[2]
    for room, folder in (("", "platform/dpsweep"), ("trainables/", "trainables"),
                         ("search_spaces/", "search_spaces"), ("cluster/", "cluster")):  # fmt: skip
        for path in (root / folder).rglob("*.py"):
            assert f"dpsweep/{room}{path.relative_to(root / folder).as_posix()}" in names
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import dpsweep; "
         "import dpsweep.foundation.errors; print(dpsweep.__file__)", str(tmp_path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip().startswith(str(package)), done.stderr


def test_nodes_must_share_the_directory_and_its_locks(tmp_path):
    """A lock of this process is a lock of another node's, where locks hold between nodes."""
    path = tmp_path / "witness"
    assert sharing_problem(str(path)) == "not shared"
    lock = FileLock(path, holder="the driver")
    assert sharing_problem(str(path)) == ""
    lock.release()
    assert sharing_problem(str(path)) == "not locked"
    refuse_unshared(tmp_path, {"a": "", "b": ""})
    found = {"a": "", "b": "not locked", "c": "not shared", "d": "not locked"}
    with pytest.raises(ResourceError, match="not shared with: c"):
        refuse_unshared(tmp_path, found)
    del found["c"]
    with pytest.raises(ResourceError, match="does not hold on: b, d"):
        refuse_unshared(tmp_path, found)


@pytest.mark.parametrize(
    ("cpu", "gpu", "nodes", "fits"),
    [
        (1, 0, [{"CPU": 2.0}], True),
        (0.25, 0.5, [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}], True),
        (2, 1, [{"CPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}], False),
        (4, 0, [{"CPU": 2.0}, {"CPU": 2.0}], False),
        (1, 0.5, [{"CPU": 2.0}], False),
    ],
)
def test_a_trial_must_fit_on_one_node(cpu, gpu, nodes, fits):
    resources = ResourcesSpec(cpu=cpu, gpu=gpu)
    if fits:
        refuse_impossible(resources, nodes)
    else:
        with pytest.raises(ResourceError, match="no node can run a trial"):
            refuse_impossible(resources, nodes)

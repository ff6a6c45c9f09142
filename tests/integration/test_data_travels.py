"""Records go to a node once, not once for each trial: counted in bytes on the wire."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml
from import_graph import ROOT
from whole_studies import make_spec

HELPERS = ROOT / "tests" / "helpers"
ISOLATE = ["unshare", "--pid", "--fork", "--mount", "--net", "--uts", "--mount-proc", "true"]
NUM_RECORDS, SIDE, SLOTS = 20_000, 32, 3


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_records_travel_to_a_node_once_for_all_its_trials(tmp_path):
    if shutil.which("unshare") is None or subprocess.run(ISOLATE, capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here: that needs root")
    draw = np.random.default_rng(0)
    images = draw.random((NUM_RECORDS, 1, SIDE, SIDE), dtype=np.float32)  # nothing to compress
    labels = draw.integers(0, 10, NUM_RECORDS)
    np.savez(tmp_path / "data.npz", x_train=images, y_train=labels)
    spec = make_spec(
        tmp_path,
        name="travels",
        data={
            "dataset": "npz",
            "path": str(tmp_path / "data.npz"),
            "num_records": NUM_RECORDS,
            "num_classes": 10,
            "validation": {"fraction": 0.2, "visibility": "public"},
        },
        resources={"cpu": 1},
        cluster={"target": "ray", "address": "10.77.0.1:6379"},
        report={"points": 2},
    )
    spec["search"] |= {"num_trials": 2 * SLOTS}
    spec["search"]["space"] = {
        "method": "dp_sgd",
        "model.name": "linear",
        "optim.lr": {"loguniform": [0.1, 1]},
        "batch.expected": 500,
        "train.max_steps": 20,
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "home").mkdir()
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
    }
    command = [HELPERS / "ray_on_node2.sh", SLOTS, "dpsweep", "run", tmp_path / "spec.yaml"]
    done = subprocess.run(
        [HELPERS / "two_nodes.sh", *map(str, command)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.count(" finished ") == 2 * SLOTS
    sent = int(re.search(r"^sent (\d+)$", done.stdout, re.MULTILINE)[1])
    assert images.nbytes <= sent < 1.5 * images.nbytes

"""The batch script on two nodes with Ray's own `symmetric-run`: requeued in the middle, it finishes.

Nodes are namespaces that share the file system alone; Slurm's commands are stand-ins.
"""

import os
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from import_graph import ROOT
from whole_studies import cli_here

HELPERS = ROOT / "tests" / "helpers"
ISOLATE = ["unshare", "--pid", "--fork", "--mount", "--net", "--uts", "--mount-proc", "true"]


def start(folder):
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "NOTES": str(folder / "notes"),
        "SIGNAL": str(folder / "signal"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
    }
    (folder / "home").mkdir(exist_ok=True)
    with (folder / "said").open("a") as said:
        return subprocess.Popen(
            [
                HELPERS / "two_nodes.sh",
                HELPERS / "slurm_stand_ins.sh",
                folder / "digits-batch.sbatch",
            ],
            env=environment,
            stdout=said,
            stderr=said,
        )


def reports(folder):
    journal = folder / "studies" / "digits-batch" / "journal.jsonl"
    return journal.read_text().count('"trial_report"') if journal.exists() else 0


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_job_that_meets_its_time_limit_is_continued_by_the_next(tmp_path):
    if shutil.which("unshare") is None or subprocess.run(ISOLATE, capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here: that needs root")
    spec = yaml.safe_load((ROOT / "tests" / "golden" / "cluster" / "digits-eps2.yaml").read_text())
    spec |= {
        "name": "digits-batch",
        "resources": {"cpu": 1},
        "storage": {"path": f"{tmp_path}/studies"},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db", "pictures": False},
        "cluster": {"slurm": {"node_cpus": 1, "max_nodes": 2}},
    }
    spec["privacy"]["study_epsilon"] = 8.0
    spec["search"]["num_trials"] = 8
    spec["search"]["space"]["train.epochs"] = 400
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = cli_here("cluster", "render", "slurm", tmp_path / "spec.yaml", "--to", tmp_path)
    assert done.returncode == 0, done.stderr

    process, deadline = start(tmp_path), time.monotonic() + 300
    while reports(tmp_path) < 3:
        assert process.poll() is None, (tmp_path / "said").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (tmp_path / "signal.new").write_text("USR1")
    (tmp_path / "signal.new").rename(tmp_path / "signal")
    assert process.wait(timeout=120) == 143
    assert (tmp_path / "notes").read_text() == "requeue 77\n"
    assert "Ray runtime started" in (tmp_path / "notes.node2").read_text()

    assert start(tmp_path).wait(timeout=500) == 0, (tmp_path / "said").read_text()[-3000:]
    assert (tmp_path / "notes").read_text() == "requeue 77\n"
    said = (tmp_path / "said").read_text()
    assert "continuing at step" in said
    assert "study 'digits-batch' has finished" in said
    assert not (tmp_path / "studies" / ".slurm" / "digits-batch" / "token").exists()

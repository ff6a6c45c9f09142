"""Slurm itself, two nodes on this machine: a batch job is queued again in the middle, and finishes.

Slurm's daemons run in namespaces, one set for each node, with ports of their own.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from import_graph import ROOT

HELPERS = ROOT / "tests" / "helpers"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "ip")
ISOLATE = ["unshare", "--pid", "--fork", "--mount", "--net", "--uts", "--mount-proc", "true"]


class Slurm:
    """Slurm on two nodes; ``ask`` types a command on the first of them."""

    def __init__(self, folder, process, environment):
        self.folder, self.environment = folder, environment
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        await_that(children.read_text, 10)
        self._enter = ["nsenter", f"--target={children.read_text().split()[0]}"]
        self._enter += ["--pid", "--mount", "--net", "--uts", f"--wd={folder}", "--"]

    def ask(self, *command):
        done = subprocess.run(
            [*self._enter, *map(str, command)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout if done.returncode == 0 else ""

    def job(self, number):
        """What Slurm says of a job, by its names."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", number)))


def await_that(condition, seconds, *, or_else=lambda: ""):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, or_else()
        time.sleep(0.2)


@pytest.fixture
def slurm(tmp_path):
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (packages slurmctld, slurmd and munge)")
    if subprocess.run(ISOLATE, capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here: that needs root")
    (tmp_path / "home").mkdir()
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path: it has sockets
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
        "SLURM_CONF": str(folder / "slurm.conf"),
    }
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [HELPERS / "two_nodes.sh", HELPERS / "slurm_daemons.sh", folder],
            env=environment,
            stdout=said,
            stderr=said,
        )
    try:
        nodes = Slurm(tmp_path, process, environment)
        await_that(
            lambda: nodes.ask("sinfo", "-hN", "-o", "%T").split() == ["idle"] * 2,
            60,
            or_else=(folder / "said").read_text,
        )
        yield nodes
    finally:
        process.send_signal(signal.SIGKILL)  # its namespaces, and all in them, end with it
        process.wait(timeout=30)
        with contextlib.suppress(OSError):
            shutil.copytree(folder, tmp_path / "slurm", ignore=shutil.ignore_patterns("munge"))
        shutil.rmtree(folder, ignore_errors=True)


def write_spec(folder):
    spec = yaml.safe_load((ROOT / "tests" / "golden" / "cluster" / "digits-eps2.yaml").read_text())
    spec |= {
        "name": "digits-slurm",
        "resources": {"cpu": 1},
        "storage": {"path": f"{folder}/studies"},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "pictures": False},
        "cluster": {"slurm": {"node_cpus": 1, "max_nodes": 2, "minutes": 10}},
    }
    spec["privacy"]["study_epsilon"] = 8.0
    spec["search"]["num_trials"] = 8
    spec["search"]["space"]["train.epochs"] = 2000
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_a_job_that_slurm_queues_again_twice_finishes_its_study(slurm, tmp_path):
    write_spec(tmp_path)
    journal = tmp_path / "studies" / "digits-slurm" / "journal.jsonl"
    log = tmp_path / "digits-slurm.slurm.log"

    def told():
        return log.read_text()[-5000:] if log.exists() else "nothing was printed"

    def reports():
        return journal.read_text().count('"trial_report"') if journal.exists() else 0

    submitted = slurm.ask("dpsweep", "cluster", "submit", "slurm", "spec.yaml", "--to", tmp_path)
    number = re.search(r"Submitted batch job (\d+)", submitted)[1]
    await_that(lambda: reports() >= 3, 300, or_else=told)
    assert slurm.job(number)["NodeList"] == "node[1-2]"
    assert "RUNNING" in slurm.ask("dpsweep", "cluster", "status", "slurm", "digits-slurm")

    # Two minutes before the time limit, Slurm tells the script, which asks to be queued again.
    slurm.ask("scontrol", "update", f"JobId={number}", "TimeLimit=3")
    await_that(lambda: slurm.job(number)["Restarts"] == "1", 120, or_else=told)
    slurm.ask("scontrol", "update", f"JobId={number}", "TimeLimit=10")
    assert "terminated; to continue, run the same command again" in log.read_text()
    first = reports()

    await_that(lambda: reports() >= first + 3, 300, or_else=told)
    slurm.ask("scontrol", "requeue", number)
    await_that(lambda: slurm.job(number)["Restarts"] == "2", 120, or_else=told)
    second = reports()
    await_that(lambda: slurm.job(number)["JobState"] == "COMPLETED", 500, or_else=told)
    assert slurm.job(number)["Restarts"] == "2"
    assert reports() > second
    assert log.read_text().count("Running command on head node") == 3
    assert log.read_text().count("2 nodes, 2 CPUs") == 3
    assert "continuing at step" in log.read_text()
    assert "study 'digits-slurm' has finished" in log.read_text()
    (state,) = (tmp_path / "studies" / ".slurm" / "digits-slurm").iterdir()
    assert (state.name, (state / "token").exists()) == (str(number), False)

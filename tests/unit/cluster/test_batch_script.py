"""The batch script runs: its signals reach the driver alone, and only a saved study is requeued.

Slurm's and Ray's commands are stand-ins here, as `ray symmetric-run` ends all Ray of a machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from import_graph import ROOT

from dpsweep.cluster.rendering.slurm import SlurmRendering
from dpsweep.planning.reading import read_spec

#: Name -> the stand-in. The driver ends as `dpsweep run` does: 143 after SIGTERM.
PROGRAMS = {
    "scontrol": 'if [ "$1" = show ]; then echo node1; echo node2; else echo "$@" >> "$LOG"; fi',
    "srun": 'while [[ $1 = --* ]]; do echo "$1" >> "$LOG.srun"; shift; done; "$@"',
    "ray": 'echo "$1 $2 $3 $4 $5" >> "$LOG"; [ "$1" != stop ] || exit 0; sleep "$RAY_TAKES_S"; while [ "$1" != -- ]; do shift; done; shift; "$@"',
}
#: That of dpsweep is Python, as bash cannot take a signal that was ignored when it was started.
DPSWEEP = """\
import os, signal, stat, sys, time
def say(text, mode="a", behind=""):
    with open(os.environ["LOG"] + behind, mode) as file:
        print(text, file=file)
def save(number, frame):
    say("saved")
    sys.exit(int(os.environ.get("AT_TERM", 143)))
signal.signal(signal.SIGTERM, save)
token = os.environ["RAY_AUTH_TOKEN_PATH"]
say(f"{sys.argv[1]} address={os.environ['RAY_ADDRESS']} mode={os.environ['RAY_AUTH_MODE']}")
say(open(sys.argv[2]).read(), behind=".spec")
say(f"{len(open(token).read())} {stat.S_IMODE(os.stat(token).st_mode):o}", behind=".token")
say(os.environ.get("DPSWEEP_UNATTENDED", "a person's"), behind=".begun_by")
say("", behind=".started")
time.sleep(float(os.environ["LASTS_S"]))
sys.exit(int(os.environ.get("CODE", 0)))
"""
LONG_S = 20
#: As the stand-in of ray notes it: nobody but the job uses its nodes.
STOPPED = "stop --force   "


@pytest.fixture
def script(tmp_path: Path) -> Path:
    bin_path = tmp_path / "bin"
    bin_path.mkdir()
    for name, body in PROGRAMS.items():
        (bin_path / name).write_text(f"#!/bin/bash\n{body}\n")
    (bin_path / "dpsweep").write_text(f"#!{sys.executable} -SE\n{DPSWEEP}")
    for path in bin_path.iterdir():
        path.chmod(0o755)
    changes = [f"storage.path={tmp_path}/studies", "cluster.slurm.venv=null"]
    spec = read_spec(ROOT / "tests" / "golden" / "cluster" / "digits-eps2.yaml", overrides=changes)
    (text,) = SlurmRendering.files(spec).values()
    path = tmp_path / "job.sbatch"
    path.write_text(text)
    return path


def start(script: Path, **settings: object) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PATH": f"{script.parent}/bin:{os.environ['PATH']}",
        "LOG": str(script.parent / "log"),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": "77",
        "MLFLOW_TRACKING_TOKEN": "planted-token",
        "LASTS_S": str(LONG_S),
        "RAY_TAKES_S": "0",
        **{key: str(value) for key, value in settings.items()},
    }
    return subprocess.Popen(
        ["bash", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def log(script: Path) -> list[str]:
    return (script.parent / "log").read_text().splitlines()


def wait_for_driver(script: Path) -> None:
    wait_for(script.parent / "log.started")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state(script: Path) -> Path:
    return script.parent / "studies" / ".slurm" / "digits-eps2"


@pytest.mark.slow
def test_another_job_of_the_study_leaves_a_running_one_alone(script: Path) -> None:
    first = start(script, LASTS_S=4)
    wait_for_driver(script)
    token = (state(script) / "77" / "token").read_text()
    second = start(script, SLURM_JOB_ID=78, LASTS_S=0, CODE=2)  # refused: the study runs
    second.communicate(timeout=30)
    assert second.returncode == 2
    assert first.poll() is None
    assert (state(script) / "77" / "token").read_text() == token
    first.communicate(timeout=30)
    assert first.returncode == 0


def test_a_job_runs_the_study_with_a_token_of_its_own(script: Path) -> None:
    process = start(script, LASTS_S=0)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert log(script) == [
        STOPPED,  # what a killed job has left
        "symmetric-run --address node1:6379 --min-nodes 4",
        "run address=node1:6379 mode=token",
        STOPPED,
    ]
    assert "name: digits-eps2" in (script.parent / "log.spec").read_text()
    assert (script.parent / "log.token").read_text().split() == ["64", "600"]
    left = {path.name for path in (state(script) / "77").iterdir()}
    assert left == {"sweep.yaml", "driver.pid", "begun", "code"}
    assert "planted-token" not in said


@pytest.mark.parametrize("code", [1, 2, 3, 137])
def test_a_job_ends_as_its_driver_and_is_not_queued_again(script: Path, code: int) -> None:
    process = start(script, LASTS_S=0, CODE=code)
    process.communicate(timeout=30)
    assert process.returncode == code
    assert "requeue 77" not in log(script)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sent", "settings", "code", "ending"),
    [
        (signal.SIGUSR1, {}, 143, ["saved", STOPPED, "requeue 77"]),
        (signal.SIGUSR1, {"SLURM_RESTART_COUNT": 20}, 143, ["saved", STOPPED]),
        (signal.SIGUSR1, {"AT_TERM": 0}, 0, ["saved", STOPPED]),
        (signal.SIGUSR2, {}, 143, ["saved", STOPPED]),
    ],
)
def test_a_signal_lets_the_driver_save(
    script: Path, sent: int, settings: dict[str, int], code: int, ending: list[str]
) -> None:
    process = start(script, **settings)
    wait_for_driver(script)
    process.send_signal(sent)  # to the batch shell alone, as B: has it
    process.communicate(timeout=30)
    assert process.returncode == code
    assert log(script)[3:] == ending


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sent", "ending"), [(signal.SIGUSR2, []), (signal.SIGUSR1, ["requeue 77"])]
)
def test_a_signal_while_ray_starts_keeps_the_driver_from_starting(
    script: Path, sent: int, ending: list[str]
) -> None:
    process = start(script, RAY_TAKES_S=2, LASTS_S=0)
    wait_for(script.parent / "log.srun")
    process.send_signal(sent)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 143, said
    assert log(script)[2:] == [STOPPED, *ending]
    assert "No such file" not in said
    assert "stopped before the study began" in said

    again = start(script, SLURM_RESTART_COUNT=1, LASTS_S=0)  # as the same job, queued again
    again.communicate(timeout=30)
    assert again.returncode == 0
    assert any(line.startswith("run ") for line in log(script))


@pytest.mark.slow
def test_only_a_job_that_was_queued_again_has_begun_by_itself(script: Path) -> None:
    for times in (0, 1):
        start(script, LASTS_S=0, SLURM_RESTART_COUNT=times).communicate(timeout=30)
    start(script, LASTS_S=0).communicate(timeout=30)  # as Slurm has it before the first time
    begun_by = (script.parent / "log.begun_by").read_text().splitlines()
    assert begun_by == ["a person's", "1", "a person's"]


def test_a_job_that_was_queued_again_before_its_study_began_is_a_persons(script: Path) -> None:
    for _ in range(2):
        start(script, LASTS_S=0, SLURM_RESTART_COUNT=1).communicate(timeout=30)
    assert (script.parent / "log.begun_by").read_text().splitlines() == ["a person's", "1"]


def test_ray_gets_all_cores_of_its_task(script: Path) -> None:
    """Since Slurm 22.05 srun does not ask for what the job has."""
    start(script, LASTS_S=0).communicate(timeout=30)
    asked = (script.parent / "log.srun").read_text().splitlines()
    assert asked == ["--ntasks-per-node=1", "--cpus-per-task=8"]


def test_sigterm_to_all_processes_lets_the_driver_save_and_does_not_requeue(script: Path) -> None:
    process = start(script)
    wait_for_driver(script)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert log(script)[3:] == ["saved", STOPPED]


def test_a_job_without_its_secret_starts_nothing(script: Path) -> None:
    process = start(script, MLFLOW_TRACKING_TOKEN="")
    said, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "MLFLOW_TRACKING_TOKEN: set it where you call sbatch" in said
    assert not (script.parent / "log").exists()

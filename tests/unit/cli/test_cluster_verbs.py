"""The verbs of clusters: what they print, write, run and refuse."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from import_graph import ROOT
from whole_studies import cli_here

GOLDEN = ROOT / "tests" / "golden" / "cluster"
SPEC = GOLDEN / "digits-eps2.yaml"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Put programs on PATH that note how they are called; return the folder, with ``called``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("kubectl", "sbatch", "squeue", "scancel", "ray"):
        program = folder / name
        program.write_text(
            f"#!{sys.executable} -SE\nimport json, os, sys\n"
            f"open({str(tmp_path / 'called')!r}, 'a').write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n"
            "sys.exit(int(os.environ.get('CODE_' + sys.argv[-1], 0)))\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dashboard(monkeypatch):
    """Listen where Ray's job API is said to be; return the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
        yield address


def called(folder):
    return [json.loads(line) for line in (folder / "called").read_text().splitlines()]


@pytest.mark.parametrize("target", ["kuberay", "slurm", "vm"])
def test_render_prints_what_it_would_write(target, tmp_path):
    printed = cli_here("cluster", "render", target, SPEC)
    assert printed.returncode == 0
    written = cli_here("cluster", "render", target, SPEC, "--to", tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    assert file.read_text() == printed.stdout
    assert written.stdout == ""
    assert f"written: {file}" in written.stderr


@pytest.mark.parametrize("target", ["local", "ray"])
def test_nothing_is_rendered_for_what_a_run_joins(target):
    done = cli_here("cluster", "render", target, SPEC)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"there is nothing to render for {target}: `" in done.stderr


def test_rendering_loads_neither_ray_nor_torch(tmp_path):
    code = (
        "import sys; from dpsweep.cli.app import app; "
        f"app(['cluster', 'submit', 'vm', {str(SPEC)!r}, '--dry-run'], standalone_mode=False); "
        f"app(['cluster', 'render', 'kuberay', {str(SPEC)!r}], standalone_mode=False); "
        "print([m for m in ('torch', 'ray', 'mlflow', 'optuna') if m in sys.modules])"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path)
    assert said.splitlines()[-1] == "[]"


DRY = {
    "kuberay": {
        "submit": "kubectl apply --filename out/digits-eps2.kuberay.yaml",
        "status": "kubectl get rayjob dpsweep-digits-eps2",
        "logs": "kubectl logs --selector job-name=dpsweep-digits-eps2 --tail 200",
        "stop": "kubectl delete rayjob dpsweep-digits-eps2 --ignore-not-found",
    },
    "slurm": {
        "submit": "sbatch --output=out/digits-eps2.slurm.log out/digits-eps2.sbatch",
        "status": "squeue --me --name=dpsweep-digits-eps2 --long",
        "logs": "tail -n 200 out/digits-eps2.slurm.log",
        "stop": "scancel --me --name=dpsweep-digits-eps2 --state=PENDING\n"
        "scancel --me --name=dpsweep-digits-eps2 --batch --signal=USR2",
    },
    "ray": {
        "submit": "ray job delete --address http://127.0.0.1:8265 dpsweep-digits-eps2 || true\n"
        "ray job submit --address http://127.0.0.1:8265 --submission-id dpsweep-digits-eps2 --working-dir out/dpsweep-digits-eps2"
        " --no-wait -- dpsweep run digits-eps2.yaml",
        "status": "ray job status --address http://127.0.0.1:8265 dpsweep-digits-eps2",
        "logs": "ray job logs --address http://127.0.0.1:8265 dpsweep-digits-eps2",
        "stop": "ray job stop --address http://127.0.0.1:8265 dpsweep-digits-eps2",
    },
    "vm": {
        "status": "ray exec out/digits-eps2.vm.yaml 'RAY_AUTH_MODE=token ray job status dpsweep-digits-eps2'",
        "logs": "ray exec out/digits-eps2.vm.yaml 'RAY_AUTH_MODE=token ray job logs dpsweep-digits-eps2'",
        "stop": "ray exec out/digits-eps2.vm.yaml 'RAY_AUTH_MODE=token ray job stop dpsweep-digits-eps2' || true\n"
        "ray down --yes out/digits-eps2.vm.yaml",
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("target", "verb"), [(target, verb) for target, verbs in DRY.items() for verb in verbs]
)
def test_dry_run_prints_the_commands_and_does_nothing(target, verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    for study in ("digits-eps2", SPEC) if verb != "submit" else (SPEC,):
        done = cli_here("cluster", verb, target, study, "--to", "out", "--dry-run")
        assert (done.returncode, done.stdout) == (0, DRY[target][verb] + "\n")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_submission_is_read_by_a_shell_as_it_is_run(tools):
    done = cli_here("cluster", "submit", "vm", SPEC, "--to", "a b", "--dry-run")
    subprocess.run(["bash", "-c", done.stdout], check=True)
    dry = called(tools)
    (tools / "called").unlink()
    assert cli_here("cluster", "submit", "vm", SPEC, "--to", "a b").returncode == 0
    assert called(tools) == dry
    assert [call[1] for call in dry] == ["up", "exec", "exec"]
    assert (tools / "a b" / "digits-eps2.vm.yaml").is_file()


@pytest.mark.parametrize("target", ["kuberay", "slurm", "ray"])
def test_a_submission_writes_its_files_first(target, tools, dashboard):
    done = cli_here("cluster", "submit", target, SPEC, "--to", "out")
    assert done.returncode == 0, done.stderr
    last = called(tools)[-1]
    named = [Path(word) for word in last if word.startswith("out/")]
    assert len(named) == 1
    assert named[0].exists()
    assert "$ " + " ".join(last) in done.stderr


@pytest.mark.parametrize(
    ("target", "verb", "file"),
    [
        ("vm", "status", "digits-eps2.vm.yaml"),
        ("vm", "logs", "digits-eps2.vm.yaml"),
        ("vm", "stop", "digits-eps2.vm.yaml"),
        ("slurm", "logs", "digits-eps2.slurm.log"),
    ],
)
def test_a_file_of_a_submission_that_is_not_here_is_told_with_where_it_may_be(
    target, verb, file, tools
):
    done = cli_here("cluster", verb, target, "digits-eps2")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: there is no {file} in {tools}")
    assert "fix: name the folder that it was submitted with: --to" in done.stderr
    assert ("has not begun" in done.stderr) == (target == "slurm")
    assert not (tools / "called").exists()
    (tools / "jobs").mkdir()
    (tools / "jobs" / file).touch()
    done = cli_here("cluster", verb, target, "digits-eps2", "--to", "jobs")
    assert done.returncode == 0, done.stderr


def test_a_tool_that_is_not_here_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    for verb in ("submit", "status", "stop"):
        done = cli_here("cluster", verb, "slurm", SPEC)
        assert done.returncode == 2
        assert re.match(
            r"error: s\w+ is not here, and cluster slurm needs it\n  fix: ", done.stderr
        )
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_is_told(tools, monkeypatch):
    monkeypatch.setenv("CODE_dpsweep-x", "7")
    done = cli_here("cluster", "status", "kuberay", "x")
    assert done.returncode == 1
    assert "`kubectl get rayjob dpsweep-x` failed\n  because: its exit status is 7" in done.stderr


def test_what_may_fail_stops_nothing(tools, dashboard, monkeypatch):
    monkeypatch.setenv("CODE_dpsweep-digits-eps2", "1")  # there was no such job
    assert cli_here("cluster", "submit", "ray", SPEC).returncode == 0
    assert [call[2] for call in called(tools)] == ["delete", "submit"]


@pytest.mark.parametrize("verb", ["submit", "status", "logs", "stop"])
def test_a_dashboard_that_does_not_answer_is_told_before_anything_is_run(verb, tools, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
    before = set(tools.iterdir())
    done = cli_here("cluster", verb, "ray", SPEC)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: nothing answers at {address}, which cluster ray speaks")
    assert "RAY_API_SERVER_ADDRESS" in done.stderr
    assert set(tools.iterdir()) == before


@pytest.mark.parametrize("study", ["../up", "-n", "a b", "$(id)", "no/such.yaml", "", "a\nb"])
def test_a_name_that_is_none_is_refused(study, tools):
    done = cli_here("cluster", "status", "kuberay", "--", study)
    assert done.returncode == 2
    assert "neither a spec file nor the name of a study" in done.stderr
    assert not (tools / "called").exists()


def test_the_address_of_a_dashboard_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "https://ray.example")
    done = cli_here("cluster", "status", "ray", "x", "--dry-run")
    assert done.stdout == "ray job status --address https://ray.example dpsweep-x\n"


@pytest.mark.parametrize("place", ["file", "/proc/none", "folder"])
def test_a_folder_that_cannot_be_written_is_told(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "digits-eps2.sbatch").mkdir(parents=True)
    done = cli_here("cluster", "render", "slurm", SPEC, "--to", place)
    assert done.returncode == 2
    assert f"error: {place}/digits-eps2.sbatch cannot be written" in done.stderr
    assert "fix: name another folder: --to" in done.stderr


def test_a_wrong_target_is_told():
    done = cli_here("cluster", "render", "kubray", SPEC)
    assert done.returncode == 2
    assert "unknown kind of cluster 'kubray'\n  fix: did you mean 'kuberay'?" in done.stderr


def test_local_has_no_jobs():
    for verb in ("submit", "status", "logs", "stop"):
        done = cli_here("cluster", verb, "local", SPEC)
        assert (done.returncode, "local has no jobs" in done.stderr) == (2, True)


def test_places_of_a_cluster_need_not_be_here():
    changes = ["--set", "storage.path=/proc/none", "--set", "data.path=/none/data.npz"]
    done = cli_here("cluster", "render", "slurm", GOLDEN / "odd_name.v2.yaml", *changes)
    assert done.returncode == 0

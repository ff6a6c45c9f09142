"""Secrets that a run is given stand nowhere in what it writes, says, or shows to other users."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from whole_studies import cli_here, descendants, make_spec

# In parts, so that this file and what quotes it have no whole one.
PLANTED = {
    name: "planted" + f"{number}".rjust(4, "0") + "s3cretZ"
    for number, name in enumerate(
        (
            "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "RAY_AUTH_TOKEN",
            "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD", "HF_TOKEN",
            "WANDB_API_KEY",
        )
    )
}  # fmt: skip
IN_ADDRESS = "planted9999s3cretZ"
MARKS = [*(word.encode() for word in PLANTED.values()), IN_ADDRESS.encode()]


def found_in(content):
    return [mark.decode() for mark in MARKS if mark in content]


def in_files(folder):
    """Return file -> secrets of all files below a folder."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(OSError):  # it has been removed
            if path.is_file() and not path.is_symlink():
                secrets = found_in(path.read_bytes())
                if secrets:
                    found[str(path)] = secrets
    return found


def in_command_lines(pid):
    """Return secrets in the command lines of a process and all that it has started."""
    found = []
    for each in (pid, *descendants(pid)):
        try:
            line = Path(f"/proc/{each}/cmdline").read_bytes()
            found += [
                (secret, line[:160], line[max(0, line.find(secret.encode()) - 120) :][:200])
                for secret in found_in(line)
            ]
        except OSError:  # it has ended
            continue
    return found


def environment(root, **more):
    token = root / "token"
    token.write_text(PLANTED["RAY_AUTH_TOKEN"])
    return {
        **os.environ,
        **PLANTED,
        "MLFLOW_TRACKING_USERNAME": "me",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_AUTH_MODE": "token",
        "COLUMNS": "400",
        **more,
    }


def write(root, **changes):
    path = root / "spec.yaml"
    path.write_text(yaml.safe_dump(make_spec(root, **changes)))
    return path


@pytest.mark.ray
@pytest.mark.parametrize("ends", ["well", pytest.param("with a crash", marks=pytest.mark.slow)])
def test_no_secret_is_written_or_said_by_a_run(tmp_path, ends):
    changes = {"search__num_trials": 2, "report": {"points": 2}}
    if ends != "well":
        (tmp_path / "broken.py").write_text(
            "def net(input_shape, num_classes):\n"
            "    import os, torch\n"
            "    class Net(torch.nn.Linear):\n"
            "        def forward(self, x):\n"
            "            if 'RAY_JOB_ID' in os.environ:\n"
            "                raise RuntimeError('crashed on purpose')\n"
            "            return super().forward(x.flatten(1))\n"
            "    return Net(64, num_classes)\n"
        )
    spec = make_spec(tmp_path, **changes)
    if ends != "well":
        spec["search"]["space"]["model.name"] = "broken:net"
        spec["resources"]["max_failures"] = 0
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    # A short path: sockets lie below it. Ray's logs of this run, and of no other.
    with_ray = Path(f"/tmp/planted-{os.getpid()}-{len(ends)}")
    with_ray.mkdir(mode=0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "dpsweep", "run", str(path)],
        env=environment(tmp_path, RAY_TMPDIR=str(with_ray)),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        shown, looked, logged, logs = [], 0, {}, set()
        while process.poll() is None:
            shown += in_command_lines(process.pid)
            looked += len(descendants(process.pid)) > 1
            with suppress(OSError):  # Ray's folder goes with the run
                logs |= {path.name for path in with_ray.rglob("*.out")}
                logged |= in_files(with_ray)
            time.sleep(0.2)
        said = b"".join(process.communicate(timeout=60))
        assert looked > 2, said.decode()  # Ray's processes were there to be looked at
        assert shown == []
        assert found_in(said) == []
        assert process.returncode == 0 if ends == "well" else process.returncode != 0, said.decode()
        (tmp_path / "token").unlink()
        assert in_files(tmp_path) == {}
        assert any("raylet" in name for name in logs), "Ray's logs were there to be looked at"
        assert logged == {}
        assert list(with_ray.iterdir()) == []
        assert list((tmp_path / "studies" / "digits").glob("journal.jsonl"))
    finally:
        if process.poll() is None:
            process.kill()
        subprocess.run(["rm", "-rf", str(with_ray)], check=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "uri",
    [
        f"http://me:{IN_ADDRESS}@127.0.0.1:9",
        f"http://{IN_ADDRESS}@127.0.0.1:9",
        f"postgresql://me:{IN_ADDRESS}@127.0.0.1:9/db",
        f"postgresql+psycopg://me:a/{IN_ADDRESS}@127.0.0.1:9/db",
        f"mysql://me:{IN_ADDRESS}@127.0.0.1:9/db",
        f"ftp://me:{IN_ADDRESS}@127.0.0.1/db",
        f"http://127.0.0.1:9/?token={IN_ADDRESS}",
        f"mlruns?password={IN_ADDRESS}",
    ],
)
@pytest.mark.parametrize("verb", ["validate", "run", "plan"])
def test_a_secret_in_a_tracking_address_is_refused_and_not_shown(tmp_path, verb, uri):
    path = write(tmp_path, tracking={"uri": uri})
    done = cli_here(verb, path)
    assert done.returncode == 2
    assert "tracking.uri" in done.stderr
    assert found_in((done.stdout + done.stderr).encode()) == []
    assert [p.name for p in tmp_path.iterdir()] == ["spec.yaml"]


@pytest.mark.slow  # MLflow tries again for a minute and more
def test_a_dead_server_and_a_wrong_password_show_no_secret(tmp_path, monkeypatch):
    path = write(tmp_path, tracking={"uri": "http://127.0.0.1:9"})
    for name, secret in PLANTED.items():
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    for arguments in (
        ("run", path),
        ("best", "mlflow:a/b", "--tracking-uri", f"http://me:{IN_ADDRESS}@127.0.0.1:9"),
        ("list", f"mlflow:postgresql://me:{IN_ADDRESS}@127.0.0.1:9/db"),
        ("list", "mlflow:http://127.0.0.1:9"),
        ("predict", "models:/a@b", "--tracking-uri", f"http://me:{IN_ADDRESS}@127.0.0.1:9"),
    ):
        done = cli_here(*arguments)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert found_in((done.stdout + done.stderr).encode()) == [], arguments

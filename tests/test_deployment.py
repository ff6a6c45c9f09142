"""What the image and the compose file promise: pinned, without root, secrets outside, loopback."""

import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from import_graph import ROOT

COMPOSE = ROOT / "cluster" / "compose.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|ROOT_USER")
FROM_OUTSIDE = re.compile(r"\$\{[A-Z0-9_]+:\?[^}]+\}")


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load(COMPOSE.read_text())["services"]


def stages():
    """Return each stage of the image as its lines, continued ones joined."""
    lines = re.sub(r"\\\n", " ", DOCKERFILE).splitlines()
    parts = []
    for line in lines:
        if line.startswith("FROM "):
            parts.append([])
        if parts and line.strip() and not line.startswith("#"):
            parts[-1].append(line)
    return parts


def test_the_compose_file_is_a_tracking_server(services):
    assert set(services) == {"database", "store", "bucket", "mlflow"}
    settings = services["mlflow"]["environment"]
    assert settings["MLFLOW_BACKEND_STORE_URI"].startswith("postgresql+psycopg://")
    assert settings["MLFLOW_ARTIFACTS_DESTINATION"].startswith("s3://")


def test_no_secret_stands_in_the_compose_file(services):
    secrets = [
        value
        for service in services.values()
        for key, value in service.get("environment", {}).items()
        if SECRET.search(key)
    ]
    assert len(secrets) >= 7
    assert [value for value in secrets if not FROM_OUTSIDE.fullmatch(value)] == []
    assert not re.search(r"://[^/\s]*:[^/\s]*@", COMPOSE.read_text())


def test_only_loopback_is_listened_on(services):
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:5000:5000"]
    assert not any("network_mode" in service for service in services.values())


def test_images_are_pinned_or_built_here(services):
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert "build" in service or re.search(r"\d", tag), name


def test_a_missing_password_is_told_by_compose():
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("docker compose is not installed")
    command = [
        "docker",
        "compose",
        "--env-file",
        "/dev/null",
        "--file",
        COMPOSE,
        "config",
        "--quiet",
    ]
    names = dict.fromkeys(("POSTGRES_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"), "x")
    path = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(ROOT)}
    assert subprocess.run(command, env={**path, **names}, capture_output=True).returncode == 0
    done = subprocess.run(command, env=path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "set it in the environment or in .env" in done.stderr


def test_the_image_is_made_in_stages_and_runs_without_root():
    made = stages()
    assert len(made) == 4
    for stage in (made[1 + 1], made[-1]):  # what is run
        assert [line for line in stage if line.startswith("USER ")] == ["USER 1000:1000"]
        assert not any("pip" in line for line in stage)
        assert any(line.startswith("COPY --from=") for line in stage)


def test_the_image_takes_its_packages_by_constraints_and_names_no_registry():
    installs = [line for stage in stages() for line in stage if "pip install" in line]
    assert len(installs) == 2
    assert all(re.search(r"-c \S*constraints\.txt", line) for line in installs)
    assert not re.search(r"https?://|index-url|\blatest\b", DOCKERFILE)
    assert all(re.match(r"FROM python:3\.11-slim( |$)", stage[0]) for stage in stages())


def test_what_the_tracking_image_installs_is_pinned():
    (line,) = [
        line for stage in stages() for line in stage if "mlflow " in line and "pip install" in line
    ]
    names = [
        re.sub(r"\[.*\]", "", word) for word in shlex.split(line.partition("constraints.txt")[2])
    ]
    pinned = {row.partition("==")[0] for row in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names == ["mlflow", "psycopg", "boto3"]
    assert set(names) | {"psycopg-binary", "opencensus"} <= pinned


def test_the_image_gets_nothing_that_holds_a_study_or_a_secret():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    taken = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        word
        for stage in stages()
        for line in stage
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert copied == taken
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
